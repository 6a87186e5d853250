"""The application that a client names in its User-Agent."""

from __future__ import annotations

import re

# The characters that botocore lets through: those of a token (RFC 9110 section 5.6.2) and the comma. botocore warns
# about names of more than 50 characters, and sends them.
_APP = re.compile(r"(?:^| )app/([!#$%&'*+\-.^_`|~,0-9A-Za-z]{1,128})(?: |$)")


def app_of(user_agent: str) -> str:
    """The application that the user named (`AWS_SDK_UA_APP_ID`); empty: none.

    Source: AWS SDKs and Tools Reference Guide, "Application ID".
    """
    found = _APP.search(user_agent)
    return found[1] if found else ""
