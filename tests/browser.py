"""A headless Chromium to open pages in: Debian's, or another that is installed."""

import shutil
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
# it looks for updates and the like otherwise, and should need no network
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextmanager
def chromium():
    """A browser of Playwright's. FileNotFoundError where none is installed."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise FileNotFoundError("no Chromium here; with Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", *QUIET]
        )
        try:
            yield browser
        finally:
            browser.close()


def opened(browser, page, **settings):
    """The page in a tab of its own, and what goes wrong in it."""
    tab, wrong = browser.new_context(**settings).new_page(), []
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: request.url.startswith("file:") or wrong.append(request.url))
    tab.goto(page.as_uri())
    return tab, wrong
