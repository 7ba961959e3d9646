"""Pages of invented runs (tests/runtime/report/sample_runs.h), in a browser without a screen or a network."""

import dataclasses
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = ROOT / "build" / "tests" / "runtime" / "html_samples"
WHY_NOT = ROOT / ".cache" / "chromium" / "why_not"


def chromium() -> str:
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    reason = f": {WHY_NOT.read_text().strip()}" if WHY_NOT.exists() else ""
    pytest.skip(f"there is no Chromium here (Debian's chromium-headless-shell){reason}")


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    path = chromium()
    # Its sandbox is not for root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("pages")
    subprocess.run([SAMPLES, made], check=True, capture_output=True, timeout=60)
    return made


@dataclasses.dataclass
class Opened:
    """A page, and what it said and asked for since it was opened."""

    page: object
    complaints: list[str] = dataclasses.field(default_factory=list)
    requests: list[str] = dataclasses.field(default_factory=list)

    def plot(self, chart: str = "#memory-chart") -> dict[str, float]:
        """Where the plot of a chart is: x, y, width, height."""
        over = self.page.locator(f"{chart} .u-over")
        over.scroll_into_view_if_needed()
        return over.bounding_box()

    def span(self) -> list[float]:
        return self.page.evaluate("timeline.span")

    def tip(self):
        return self.page.locator("#memory-chart .tip")


@pytest.fixture
def open_page(browser, folder, tmp_path):
    contexts = []

    def open_one(name: str, scheme: str = "light", width: int = 1200) -> Opened:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, locale="en-US")
        context.set_default_timeout(300_000)  # ms: how long a busy machine takes is no matter here
        contexts.append((context, f"{name}-{scheme}-{width}"))
        opened = Opened(context.new_page())
        opened.page.on("console", lambda message: opened.complaints.append(message.text))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto((folder / f"{name}.html").as_uri())
        return opened

    yield open_one
    for context, name in contexts:
        # To be looked at, when a test fails or the page has changed.
        context.pages[0].screenshot(path=tmp_path / f"{name}.png", full_page=True)
        context.close()
