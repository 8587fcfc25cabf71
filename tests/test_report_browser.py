"""The report as a reader sees it, in headless Chromium from file://, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.report.page import report_page
from tests.report_runs import SWEEP, row, saved, sweep
from tests.test_report import hostile_run

playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
ROW_CHARTS = [
    "trade-off-aggregated", "trade-off-prefill", "trade-off-decode", "ttft-aggregated", "tpot-aggregated",
    "ttft-prefill", "tpot-decode",
]  # fmt: skip
CHARTS = [*ROW_CHARTS, "memory", "bounds", "stop-counts", "chunks", "timeline"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(SWEEP, tmp_path_factory.mktemp("browser")).out / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as runtime:
        found = runtime.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Reader:
    """A page that notes what the console says and what is asked of a network."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(
            offline=True, **({"viewport": {"width": 1280, "height": 900}} | options)
        )
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", timeout=30_000)

    def points(self, chart: str) -> int:
        """Points of a chart that are drawn."""
        return int(self.page.eval_on_selector_all(f"#{chart} .scatterlayer .point", "found => found.length"))

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def reader(browser: Any, report: Path) -> Iterator[Reader]:
    found = Reader(browser, report)
    yield found
    found.close()


def test_the_page_opens_without_console_messages_and_without_any_request(
    reader: Reader, report: Path
) -> None:
    assert reader.messages == []
    assert reader.requests == [report.as_uri()]


@pytest.fixture(scope="module")
def untouched(browser: Any, report: Path) -> Iterator[Reader]:
    """A page for tests that only look."""
    found = Reader(browser, report)
    yield found
    found.close()


@pytest.mark.parametrize("chart", CHARTS)
def test_each_chart_is_drawn(untouched: Reader, chart: str) -> None:
    box = untouched.page.locator(f"#{chart} .main-svg").first.bounding_box()
    assert box is not None
    assert box["width"] > 300
    assert box["height"] > 100
    drawn = untouched.page.eval_on_selector_all(
        f"#{chart} .scatterlayer path, #{chart} .barlayer path",
        "found => found.filter(p => p.getBBox().width > 0).length",
    )
    assert drawn > 0


def test_hovering_over_a_point_tells_its_deployment(reader: Reader) -> None:
    reader.page.locator("#trade-off-decode .point").first.hover(force=True)
    text = reader.page.locator("#trade-off-decode .hoverlayer").text_content()
    for part in ("Qwen/Qwen3-8B", "batch", "4,000 input and 64 output tokens", "TPOT", "GiB left"):
        assert part in text


def test_no_button_sends_a_chart_anywhere(reader: Reader) -> None:
    titles = reader.page.eval_on_selector_all(".modebar-btn", "all => all.map(one => one.dataset.title)")
    assert set(titles) == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_a_chart_can_be_kept_as_a_picture(reader: Reader, tmp_path: Path) -> None:
    reader.page.locator("#trade-off-decode").hover()
    with reader.page.expect_download() as download:
        reader.page.locator("#trade-off-decode .modebar-btn").first.click()
    download.value.save_as(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert reader.messages == []


def test_limits_are_drawn_and_named(reader: Reader) -> None:
    assert "TTFT limit 5,000 ms" in reader.page.locator("#ttft-aggregated").text_content()
    assert reader.page.locator("#ttft-aggregated .shapelayer path").count() == 1


@pytest.mark.parametrize("name", ["mode", "model", "device", "parallelism"])
def test_a_filter_takes_its_points_off_the_charts_and_gives_them_back(reader: Reader, name: str) -> None:
    before = {chart: reader.points(chart) for chart in ROW_CHARTS}
    boxes = reader.page.locator(f"fieldset[data-filter={name}] input")
    assert boxes.count() > 1
    boxes.first.uncheck()
    after = {chart: reader.points(chart) for chart in ROW_CHARTS}
    changed = [chart for chart in ROW_CHARTS if after[chart] < before[chart]]
    expected = (
        [chart for chart in ROW_CHARTS if chart.endswith("aggregated")] if name == "mode" else ROW_CHARTS
    )
    assert changed == expected
    reader.page.locator("#reset").click()
    assert {chart: reader.points(chart) for chart in ROW_CHARTS} == before
    assert reader.messages == []


def test_the_front_follows_the_filter(reader: Reader) -> None:
    front = "() => document.getElementById('trade-off-decode').data.at(-1).customdata"
    before = reader.page.evaluate(front)
    first = reader.page.evaluate("() => JSON.parse(document.getElementById('data').textContent).rows.device")
    on_front = {first["levels"][first["codes"][row]] for row in before if row is not None}
    device = sorted(on_front)[0]
    place = first["levels"].index(device)
    reader.page.locator("fieldset[data-filter=device] input").nth(place).uncheck()
    after = [row for row in reader.page.evaluate(front) if row is not None]
    assert after
    assert all(first["codes"][row] != place for row in after)


def test_the_front_drawn_at_first_is_that_of_the_run(reader: Reader) -> None:
    data, drawn = reader.page.evaluate(
        "() => [JSON.parse(document.getElementById('data').textContent).charts['trade-off-decode']"
        ".data.at(-1).customdata, document.getElementById('trade-off-decode').data.at(-1).customdata]"
    )

    def lines(rows: list[int | None]) -> list[set[int]]:
        text = ",".join("|" if row is None else str(row) for row in rows)
        return [{int(row) for row in part.split(",") if row} for part in text.split("|")]

    assert lines(drawn) == lines(data)


def column(reader: Reader, table: str, heading: str) -> list[str]:
    headings = [text.strip() for text in reader.page.locator(f"{table} thead th").all_text_contents()]
    return list(
        reader.page.locator(f"{table} tbody td:nth-child({headings.index(heading) + 1})").all_text_contents()
    )


def test_a_click_on_a_heading_sorts_by_value_and_a_second_turns_it_round(reader: Reader) -> None:
    table = "#answer-aggregated"
    button = reader.page.locator(f"{table} th button", has_text="TTFT ms")
    button.click()
    values = [float(text.replace(",", "")) for text in column(reader, table, "TTFT ms")]
    assert len(set(values)) > 1
    assert values == sorted(values)
    assert reader.page.locator(f"{table} th[aria-sort=ascending]").count() == 1
    button.click()
    turned = [float(text.replace(",", "")) for text in column(reader, table, "TTFT ms")]
    assert turned == sorted(values, reverse=True)
    reader.page.locator(f"{table} th button", has_text="device").first.focus()
    reader.page.keyboard.press("Enter")
    devices = column(reader, table, "device")
    assert devices == sorted(devices)


def test_a_charts_table_holds_its_points_and_follows_the_filter(reader: Reader) -> None:
    details = reader.page.locator("details[data-chart=trade-off-decode]")
    details.locator("summary").click()
    lines = details.locator("tbody tr")
    lines.first.wait_for()  # A table is made when its `toggle` event arrives, a moment after the click.
    assert lines.count() == reader.points("trade-off-decode")
    before = lines.count()
    reader.page.locator("fieldset[data-filter=device] input").first.uncheck()
    assert lines.count() == reader.points("trade-off-decode") < before


def test_another_best_deployment_shows_its_own_schedule(reader: Reader) -> None:
    first = reader.page.locator("#trace-deployment").text_content()
    times = "() => document.getElementById('timeline').data[0].x"
    before = reader.page.evaluate(times)
    reader.page.locator("#trace").select_option(index=1)
    assert reader.page.locator("#trace-deployment").text_content() != first
    assert reader.page.evaluate(times) != before
    reader.page.locator("details[data-columns=segments] summary").click()
    reader.page.locator("details[data-columns=segments] tbody tr").first.wait_for()
    assert reader.page.locator("details[data-columns=segments] tbody tr").count() > 0
    assert reader.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(browser: Any, report: Path, scheme: str) -> None:
    reader = Reader(browser, report, color_scheme=scheme)
    shades = reader.page.evaluate(
        """() => {
          const shade = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 3;
          const body = getComputedStyle(document.body);
          const tick = getComputedStyle(document.querySelector('#trade-off-decode .xtick text'));
          return [shade(body.backgroundColor), shade(body.color), shade(tick.fill)];
        }"""
    )
    paper, ink, tick = shades
    assert (paper > 200) == (scheme == "light")
    assert abs(paper - ink) > 150
    assert abs(paper - tick) > 150
    reader.close()


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_the_page_is_never_wider_than_the_window(browser: Any, report: Path, width: int) -> None:
    reader = Reader(browser, report, viewport={"width": width, "height": 800})
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    charts = reader.page.eval_on_selector_all(
        ".chart .main-svg", "all => all.map(s => s.getBoundingClientRect().right)"
    )
    assert max(charts) <= width
    reader.close()


LONG = "an-organisation/a-model-with-a-rather-long-name-of-seventy-characters-in-all-70B"


@pytest.mark.parametrize("width", [360, 1280])
def test_long_names_and_workloads_fit_the_window_too(browser: Any, tmp_path: Path, width: int) -> None:
    bins = "100-1000: 75%, 1000-9000: 25%"
    rows = [
        row(model=model, device=f"{LONG}-{device}", batch_size=size, input_length_bins=lengths)
        for model in (LONG, f"{LONG}-Instruct")
        for device in ("a", "b")
        for size in (1, 2)
        for lengths in (bins, None)
    ]
    path = tmp_path / "report.html"
    path.write_bytes(report_page(saved(*rows)))
    reader = Reader(browser, path, viewport={"width": width, "height": 800})
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    assert reader.page.evaluate("document.getElementById('memory')._fullLayout._size.w") > width / 4
    assert reader.messages == []
    reader.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_print_cuts_nothing_off(browser: Any, report: Path, scheme: str) -> None:
    reader = Reader(browser, report, color_scheme=scheme, viewport={"width": 690, "height": 1000})
    reader.page.set_viewport_size({"width": 1280, "height": 900})
    reader.page.emulate_media(media="print")
    reader.page.set_viewport_size({"width": 690, "height": 1000})  # A4 less margins, CSS pixels.
    rights = reader.page.eval_on_selector_all(
        "table, .main-svg, pre, .card",
        "all => all.filter(e => e.offsetParent !== null || e.ownerSVGElement === null)"
        ".map(e => e.getBoundingClientRect().right)",
    )
    assert max(rights) <= 691
    assert reader.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    pdf = reader.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    reader.close()


def test_hostile_names_run_nothing_and_add_nothing(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report_page(hostile_run()))
    reader = Reader(browser, path)
    for details in reader.page.locator("details").all():
        details.evaluate("one => { one.open = true; }")
    reader.page.locator("#trade-off-aggregated .point").first.hover(force=True)
    assert reader.page.evaluate("window.hacked") is None
    assert reader.page.locator("body img").count() == 0
    assert reader.page.locator("script").count() == 3
    assert reader.page.locator("#trade-off-aggregated a[href^='y']").count() == 0
    assert reader.messages == []
    assert reader.requests == [path.as_uri()]
    reader.close()
