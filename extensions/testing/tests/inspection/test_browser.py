"""The page in a browser: colours, highlights, and no request to a network. `make browser-test`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from corellm_testing.inspection.page import make_page
from corellm_testing.inspection.report import Report
from extensions.testing.tests.inspection.conftest import Inspect

pytestmark = pytest.mark.browser

Open = Callable[..., Report]

EVIL = "What <script>document.title = 'harmed'</script><img src=x onerror=\"document.title = 'harmed'\">?"
FILES = {
    "llava": ("image.png", "image.png"),
    "fuyu": ("image.png",),
    "qwen2_vl": ("video.mp4", "image.png"),
    "qwen2_audio": ("audio.wav",),
}
COLOURS = """
return [...document.querySelectorAll(".token")].map((token) => [
  getComputedStyle(token).backgroundColor, getComputedStyle(token).borderTopStyle]);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Chromium with a profile of its own and logs of console and network."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run", "--window-size=1280,1000",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser: Chrome, inspect: Inspect, tmp_path: Path) -> Open:
    """`opened(family)`: the report of an evil prompt, whose page the browser shows."""

    def show(family: str, scheme: str = "light") -> Report:
        report = inspect(family, EVIL, *FILES[family])
        page = tmp_path / "page.html"
        page.write_text(make_page(report), encoding="utf-8")
        for log in ("browser", "performance"):
            browser.get_log(log)  # drop the entries of earlier pages
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        browser.get(page.as_uri())
        return report

    return show


def lit(browser: Chrome) -> list[tuple[str, str | None]]:
    return [(e.tag_name, e.get_attribute("data-k")) for e in browser.find_elements(By.CSS_SELECTOR, ".lit")]


def point_at(browser: Chrome, element: WebElement) -> None:
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser).move_to_element(element).perform()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("family", FILES)
def test_colours_are_where_the_placeholders_are(browser: Chrome, opened: Open, family: str, scheme: str) -> None:
    """One colour for each item, on its tokens and no others; those that keep their own embedding are only outlined."""
    report = opened(family, scheme)
    shown = browser.execute_script(COLOURS)
    fills: dict[int, set[str]] = {number: set() for number in range(len(report.items))}
    others: set[str] = set()
    for token, (background, border) in zip(report.tokens, shown, strict=True):
        (others if token.embed is None else fills[token.item or 0]).add(background)
        assert (border == "dashed") == (token.item is not None and token.embed is None)
    assert all(len(colours) == 1 for colours in fills.values())
    assert len(set.union(*fills.values())) == len(report.items)
    assert not set.union(*fills.values()) & others


@pytest.mark.parametrize("family", FILES)
def test_says_nothing_and_asks_for_nothing(browser: Chrome, opened: Open, family: str) -> None:
    """Images are there; nothing is fetched but the page, nothing is logged, and a prompt's script does not run."""
    opened(family)
    widths = browser.execute_script("return [...document.images].map((image) => image.naturalWidth)")
    assert len(widths) >= len(FILES[family])
    assert min(widths) > 0
    assert browser.title == f"{family}: what the adapter did"
    assert EVIL in browser.find_element(By.TAG_NAME, "main").text
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert {url for url in requested if not url.startswith("data:")} == {browser.current_url}


@pytest.mark.parametrize("family", FILES)
def test_a_token_and_its_patch_light_up_together(browser: Chrome, opened: Open, family: str) -> None:
    """Pointing at either lights both, and what they are is said below; pointing elsewhere ends it."""
    report = opened(family)
    index, token = [(i, token) for i, token in enumerate(report.tokens) if token.embed is not None][-2]
    key = f"{token.item}-{token.embed}"
    both = browser.find_elements(By.CSS_SELECTOR, f'[data-k="{key}"]')
    assert sorted(element.tag_name for element in both) == ["i", "span"]
    for element in both:
        point_at(browser, element)
        assert lit(browser) == [(e.tag_name, key) for e in both]
        said = browser.find_element(By.ID, "now").text
        assert said.startswith(f"token {index}, id {token.id} ")
        assert f", embedding {token.embed} of " in said
    point_at(browser, browser.find_element(By.TAG_NAME, "h1"))
    assert lit(browser) == []


@pytest.mark.parametrize("width", [360, 800, 1280])
@pytest.mark.parametrize("family", FILES)
def test_fits_the_window(browser: Chrome, opened: Open, family: str, width: int) -> None:
    """Nothing makes the page wider than the window, from a telephone's on."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        opened(family)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
