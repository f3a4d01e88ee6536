"""The pages in a real browser: on a phone, in the dark, on paper. Not part of a plain run: `pytest -m browser`.

Needs playwright (`pip install playwright`) and a Chromium: one on the path, the one that ANYFUSE_CHROMIUM names, or
playwright's own (`playwright install chromium`). Without one these tests fail.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pages import bench_page, built_site, damaged, verify_page

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGES = ("equal", "different", "measured")
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}

#: The smallest contrast of a page's texts with what lies behind them, and the text that has it. WCAG's formula.
CONTRAST = """() => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const over = (color, below) => {
    context.fillStyle = `rgb(${below})`; context.fillRect(0, 0, 1, 1);
    context.fillStyle = color; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = rgb => {
    const [r, g, b] = rgb.map(x => x / 255).map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => element === null ? [255, 255, 255]
    : over(getComputedStyle(element).backgroundColor, behind(element.parentElement));
  let worst = [99, ''];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.data.trim();
    const style = getComputedStyle(element);
    if (!words || !element.checkVisibility() || ['title', 'desc'].includes(element.tagName)) continue;
    const ground = behind(element.closest('svg')?.parentElement ?? element);
    const ink = over(element.closest('svg') ? style.fill : style.color, ground);
    const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < worst[0]) worst = [contrast, words];
  }
  return worst;
}"""

#: Words of pictures that lie outside of them, and pictures that are not drawn.
PICTURES = """() => [...document.querySelectorAll('svg')].filter(svg => svg.checkVisibility()).flatMap(svg => {
  const box = svg.viewBox.baseVal;
  const outside = [...svg.querySelectorAll('text')].filter(text => {
    const {x, y, width, height} = text.getBBox();
    return x < 0 || y < 0 || x + width > box.width || y + height > box.height;
  });
  const {width, height} = svg.getBoundingClientRect();
  return width > 100 && height > 50 ? outside.map(text => text.textContent) : ['a picture of no size'];
})"""


def chromium(playwright: Any) -> str:
    found = os.environ.get("ANYFUSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    own = playwright.chromium.executable_path
    if found is None and not Path(own).exists():
        pytest.fail("no Chromium: install one, name it by ANYFUSE_CHROMIUM, or run `playwright install chromium`")
    return str(found or own)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(playwright))
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in PAGES}
    with damaged("apply_fused_ema_adamw"):
        different = verify_page(folders["different"], status=1)
    return {
        "equal": verify_page(folders["equal"]),
        "different": different,
        "measured": bench_page(folders["measured"]),
    }


@pytest.fixture
def opened(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    """A function that opens a page, and after the test finds that nothing was complained of and nothing loaded."""
    said: list[str] = []
    asked: list[str] = []
    contexts = []

    def open_page(name: str, size: dict[str, int], scheme: str = "light") -> Any:
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(files[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert all(url.startswith(("file:", "data:")) for url in asked) and len(asked) == len(set(asked))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_a_page_is_readable(name: str, scheme: str, size: dict[str, int], opened: Any) -> None:
    page = opened(name, size, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.evaluate("document.body.scrollWidth") <= size["width"]
    assert page.evaluate(PICTURES) == []
    contrast, words = page.evaluate(CONTRAST)
    assert contrast >= 4.5, f"{words!r} has a contrast of {contrast:.2f}"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(level) for level in ground.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(levels) < 64) if scheme == "dark" else (min(levels) > 192)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_printed(name: str, opened: Any) -> None:
    """On white whatever the scheme is, with what is folded unfolded, no wider than the paper."""
    page = opened(name, {"width": 688, "height": 1000}, "dark")  # A4 without its margins
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 688
    folded = (
        "[...document.querySelectorAll('details > :not(summary)')].filter(one => !one.getBoundingClientRect().height)"
    )
    assert page.evaluate(f"{folded}.length") == 0
    contrast, words = page.evaluate(CONTRAST)
    assert contrast >= 4.5, f"{words!r} has a contrast of {contrast:.2f}"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_headings_and_tables_are_in_order(opened: Any) -> None:
    for name in PAGES:
        page = opened(name, DESK)
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(one => Number(one.tagName[1]))")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert page.evaluate("document.querySelectorAll('table:not(:has(th))').length") == 0
        scrolls = "[...document.querySelectorAll('.frame')].filter(one => one.tabIndex !== 0 || !one.ariaLabel).length"
        assert page.evaluate(scrolls) == 0


# ---- the documentation site, from a server ----


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, which a server of this process gives out."""
    pytest.importorskip("mkdocs_autorefs", reason="mkdocs is in the extras docs and test")
    folder = built_site(tmp_path_factory.mktemp("site"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def visit(browser: Any, site: str) -> Iterator[Any]:
    """A function that opens a page of the site, and after the test finds that nothing was complained of and nothing
    loaded from elsewhere."""
    said: list[str] = []
    asked: list[str] = []
    contexts = []

    def open_page(size: dict[str, int]) -> Any:
        contexts.append(browser.new_context(viewport=size))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert asked and all(url.startswith((site, "data:", f"blob:{site}")) for url in asked)


def test_the_site_finds_words(visit: Any, site: str) -> None:
    page = visit(DESK)
    for words, expected in (("absmax", "apply_adam_w_quant"), ("FSDP2", "distributed"), ("group_list", "grouped")):
        page.goto(f"{site}/index.html")
        page.fill(".md-search__input", words)
        page.wait_for_selector(".md-search-result__link")
        found = page.eval_on_selector_all(".md-search-result__link", "links => links.map(link => link.href)")
        assert any(expected in link for link in found), (words, found)
        page.goto(found[0])
        assert words.lower() in page.inner_text("article").lower()


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_pages_of_the_site_fit(size: dict[str, int], visit: Any, site: str) -> None:
    """No page is wider than the window, and no formula is cut off."""
    page = visit(size)
    page.goto(f"{site}/operators/index.html")
    operators = page.eval_on_selector_all("article td a", "links => links.map(link => link.href)")
    assert len(operators) == 6
    pages = ("index", "cases", "migration", "tutorials/8bit-training", "tutorials/aclnn-c", "reference/anyfuse.aclnn")
    for address in (*operators, *(f"{site}/{name}.html" for name in pages)):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], address
        cut = "tables => tables.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
        assert page.eval_on_selector_all("table.maths", cut) == [], address
