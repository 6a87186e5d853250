"""As `s3_models`, for the botocore that `aws` has of its own."""

from awscli.clidriver import create_clidriver

from tests.support.s3_models import read_once

read_once(create_clidriver().session)
