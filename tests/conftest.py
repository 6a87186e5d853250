"""What many tests stand on: one real bucket for the whole run, and calm weather before it for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.bucket import Bucket
from tests.support.certificate import Certificate, certify
from tests.support.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    """SeaweedFS, shared by all tests: use a bucket or a key prefix of your own."""
    with Bucket() as running:
        yield running


@pytest.fixture
def simulator(bucket: Bucket) -> Iterator[Simulator]:
    with Simulator(bucket.address) as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For an https server on 127.0.0.1."""
    return certify(tmp_path_factory.mktemp("certificate"))
