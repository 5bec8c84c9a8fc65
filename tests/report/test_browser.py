"""Pages in a real browser: nothing beyond the window, no faint words, no broken pictures.

`make test-browser` runs these; they need Debian's chromium and chromium-driver, and selenium.
"""

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nestax.cli import app
from nestax.datasets import synthetic_returns
from nestax.report import write_run
from nestax.table import Table

if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("PAGES NOT SEEN: apt install chromium chromium-driver", allow_module_level=True)
pytest.importorskip("selenium", reason="PAGES NOT SEEN: pip install selenium")
pytest.importorskip("jinja2")
pytest.importorskip("matplotlib").use("Agg")

from selenium import webdriver  # noqa: E402

from nestax.figures import plot_panels, plot_weights  # noqa: E402

WIDTHS = (1200, 768, 400)
#: Letters of a figure have 10 points; at this share they are still 9 pixels high.
LEAST_SCALE = 0.68
LEAST_CONTRAST = 4.5

#: What is wrong with a page, as a list of sentences.
LOOK = """
const wrong = [];
const name = e => e.tagName.toLowerCase() + ' ' + (e.textContent || '').trim().slice(0, 30);
const inside = (e, test) => { for (; e; e = e.parentElement) if (test(e)) return e; return null; };
const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
if (document.documentElement.scrollWidth > innerWidth) wrong.push('the page is wider than the window');
for (const e of document.body.querySelectorAll('*')) {
  if (inside(e, x => x.tagName === 'svg') && e.tagName !== 'svg') continue;
  const box = e.getBoundingClientRect();
  const holder = inside(e.parentElement, scrolls);
  if (box.right > innerWidth + 1 || box.left < -1) {
    if (!holder) wrong.push('wider than the window: ' + name(e));
    else if (holder.tabIndex < 0) wrong.push('cut where no key can scroll: ' + name(e));
  }
}
for (const e of document.querySelectorAll('svg')) {
  const scale = e.getBoundingClientRect().width / e.viewBox.baseVal.width / (96 / 72);
  if (scale < arguments[0]) wrong.push('a figure is shrunk to ' + scale.toFixed(2));
  const holder = inside(e, scrolls);
  if (holder && holder.scrollWidth > holder.clientWidth) wrong.push('a figure scrolls');
}
for (const e of document.images) if (!e.naturalWidth) wrong.push('broken: ' + e.src);
const numbers = c => c.match(/[0-9.]+/g).map(Number);
const light = c => {
  const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const part = c.slice(0, 3).map(v => linear(v / 255));
  return .2126 * part[0] + .7152 * part[1] + .0722 * part[2];
};
const filled = e => (numbers(getComputedStyle(e).backgroundColor)[3] ?? 1) > 0;
for (const e of document.body.querySelectorAll('*')) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  const paper = numbers(getComputedStyle(inside(e, filled) || document.body).backgroundColor);
  const [a, b] = [light(numbers(getComputedStyle(e).color)), light(paper)].sort((x, y) => y - x);
  const ratio = (a + .05) / (b + .05);
  if (ratio < arguments[1]) wrong.push('contrast ' + ratio.toFixed(1) + ': ' + name(e));
}
return wrong;
"""


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def write(path, names, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return str(path)


def commands(folder):
    """What is typed for a report of every kind, on small files."""
    days = [np.datetime64("2024-01-01") + k for k in range(200)]
    returns = synthetic_returns(200, 12, seed=1).tolist()
    assets = [f"Industry number {k}" for k in range(12)]
    table = write(
        folder / "returns.csv",
        ["date", *assets],
        [[day, *row] for day, row in zip(days, returns, strict=True)],
    )
    rng = np.random.default_rng(0)
    kinds = np.where(np.arange(120) % 4, "healthy", "ill")
    people = [
        [*rng.normal(size=3) + (kind == "ill"), kind, f"site {k % 3}"] for k, kind in enumerate(kinds)
    ]
    examples = write(folder / "people.csv", ["size", "weight", "age", "verdict", "site"], people)
    few = ["--samples", "4000", "--seeds", "2", "--tune-seeds", "1"]
    return {
        "demo": ["demo", "--seeds", "2"],
        "portfolio": ["portfolio", table, "--unit", "percent"],
        "compare": [
            "compare",
            "--data",
            table,
            "--unit",
            "percent",
            "--methods",
            "Plain,SMVR,SSD",
            *few,
        ],
        "classify": ["classify", examples, "--target", "verdict", "--groups", "site", "--steps", "480"],
    }


@pytest.fixture(scope="module", params=["all parts", "demo", "portfolio", "compare", "classify"])
def page(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seen")
    if request.param == "all parts":
        return page_of_all_parts(folder / "run")
    words = commands(folder)[request.param]
    done = CliRunner().invoke(app, [*words, "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    return folder / "run" / "report.html"


def page_of_all_parts(folder):
    """With all that commands put on a page: panels, bars, a wide table, long words, an alarm."""
    curves = {name: np.geomspace(0.1, 1e-9, 20)[None] for name in ("SnapshotSMVR", "Plain", "NLASG")}
    result = ["gap", "± std", "above the first", "± error", "grad_norm", "diverged"]
    columns = ["method", "lr", "steps", "samples", *result]
    row = ["SnapshotSMVR", 0.1, 24_990, 200_000, 1e-9, 1e-10, 1e-10, 1e-11, 1e-4, 0]
    facts = Table(["quantity", "value"], [["method", "SnapshotSMVR with learning rate 1.41, seed 0"]])
    return write_run(
        folder,
        title="Four methods on a portfolio of made-up returns",
        summary="The gap is 1e-3.",
        command="nestax portfolio " + "a" * 80,
        settings={"returns": "b" * 90, "learning rates tried": [0.001, 0.01, 0.1], "seed": 0},
        tables=[
            ("Every method", Table(columns, [row])),
            ("Facts", facts),
        ],
        figures=[
            ("panels", "Two panels", plot_panels(np.arange(20), {"gap": curves, "grad_norm": curves})),
            ("weights", "Weights", plot_weights(["Telcm", "Hlth"], np.array([0.3, 0.7]))),
        ],
    )


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_can_be_read_at_every_width(browser, page, width, colours):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": colours}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get(page.absolute().as_uri())
    assert browser.execute_script(LOOK, LEAST_SCALE, LEAST_CONTRAST) == []
    if seen := os.environ.get("NESTAX_SCREENSHOTS"):  # a folder, for somebody to look at
        size["height"] = browser.execute_script("return document.documentElement.scrollHeight")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        name = f"{page.parents[1].name}-{width}-{colours}.png"
        browser.save_screenshot(str(Path(seen) / name))
