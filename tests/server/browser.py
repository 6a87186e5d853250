"""A real headless browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium in PATH: `make test-tools` installs it")


@contextmanager
def browser() -> Iterator[Browser]:
    """No test that runs an event loop in this thread may run meanwhile, since Playwright runs one here."""
    from playwright.sync_api import sync_playwright

    # Chromium refuses its own sandbox as root; it loads only pages of the tests. A container's /dev/shm is small.
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield chromium
        finally:
            chromium.close()
