"""The live page in a real browser, driven from the keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.e2e.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

WAIT_S = 60
ESCAPE_AT_FIRST_TOKEN = """
const shown = document.getElementById("ahead-text");
new MutationObserver((changes, watch) => {
  if (!shown.querySelector("span")) return;
  watch.disconnect();
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
}).observe(shown, { childList: true });
"""
# WCAG's contrast of an element's text with what is behind it.
CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (node) => { const c = rgb(getComputedStyle(node).backgroundColor);
  return c.length === 4 && c[3] === 0 ? behind(node.parentElement) : c; };
const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
return [...document.querySelectorAll(arguments[0])].map((node) => {
  const ink = light(rgb(getComputedStyle(node).color).slice(0, 3)), paper = light(behind(node).slice(0, 3));
  const [a, b] = [ink, paper].sort((x, y) => y - x);
  return [node.className || node.tagName, (a + 0.05) / (b + 0.05)]; });
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no browser is installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("browser")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1200",
                 f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Driver(driver))
    yield running
    running.quit()


@pytest.fixture
def page(browser: webdriver.Chrome, service: Service) -> webdriver.Chrome:
    """The page, once it has found the service."""
    browser.get(f"{service.http}/")
    WebDriverWait(browser, WAIT_S).until(lambda b: len(b.find_elements(By.CSS_SELECTOR, ".pool .replica")) == 2)
    return browser


def text(page: webdriver.Chrome, name: str) -> str:
    return page.find_element(By.ID, name).get_property("textContent") or ""  # type: ignore[return-value]


def said(page: webdriver.Chrome, wanted: str) -> None:
    WebDriverWait(page, WAIT_S).until(lambda b: text(b, "said") == wanted, f"it says {text(page, 'said')!r}")


def fill(page: webdriver.Chrome, name: str, value: str) -> None:
    field = page.find_element(By.ID, name)
    field.clear()
    field.send_keys(value)


def test_a_run_shows_origins_speed_rounds_and_acceptance(page: webdriver.Chrome, tmp_path: Path) -> None:
    assert text(page, "model") == "tiny"
    fill(page, "prompt", "one two three one two")
    fill(page, "max-tokens", "40")
    fill(page, "temperature", "0.8")
    page.switch_to.active_element.send_keys(Keys.CONTROL, Keys.ENTER)
    said(page, "done")
    assert len(page.find_elements(By.CSS_SELECTOR, "#ahead-text .accepted.tier-0")) > 3
    assert text(page, "ahead-text") == text(page, "alone-text") != ""
    assert "the same text" in text(page, "verdict")
    assert "drafted tokens kept" in text(page, "ahead-figures")
    kinds = {bar.get_attribute("class") for bar in page.find_elements(By.CSS_SELECTOR, "#timeline rect")}
    assert kinds == {"propose", "verify"}
    assert len(page.find_elements(By.CSS_SELECTOR, "#positions figure")) == 4
    assert float(text(page, "ahead-speed")) > 0
    assert page.save_screenshot(str(tmp_path / "page.png"))
    for scheme in ("light", "dark"):
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme}]})  # fmt: skip
        found: Any = page.execute_script(CONTRAST, ".answer span, p, label, h1, h2, h3, button:enabled, .replica span")
        assert min(found, key=lambda each: each[1])[1] >= 4.5, (scheme, min(found, key=lambda each: each[1]))
    severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
    assert severe == []


def test_escape_stops_and_mistakes_are_told(page: webdriver.Chrome, service: Service) -> None:
    fill(page, "temperature", "0")
    fill(page, "max-tokens", "900")
    page.execute_script(ESCAPE_AT_FIRST_TOKEN)  # a driver's own key might come when the run is over
    page.find_element(By.ID, "prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    said(page, "stopped")
    service.wait_idle()
    fill(page, "max-tokens", "901")
    page.find_element(By.ID, "run").send_keys(Keys.ENTER)
    said(page, "max_tokens is 901: the limit is 900")
