"""Make the pictures of the documentation with the tool itself: python docs/tools/make_pictures.py.

Runs the two shipped sweeps, opens their reports in headless Chromium (on the PATH), and takes pictures of
their charts. Needs the extra `test` (playwright) and pillow.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent.parent
PICTURES = ROOT / "docs" / "pictures"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
CHARTS = {
    "quickstart": {"trade-off": "#figure-trade-off-aggregated", "memory": "figure:has(> #memory)"},
    "long_context": {"chunks": "#figure-chunks", "timeline": "#figure-timeline"},
}


def main() -> None:
    """Run the sweeps and take the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as runtime:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = runtime.chromium.launch(executable_path=chromium, args=FLAGS)
        for sweep, charts in CHARTS.items():
            out = Path(folder) / sweep
            config = ROOT / "configs" / f"{sweep}.yaml"
            command = [sys.executable, "-m", "pipeline.cli", "run", str(config), "--out", str(out), "--quiet"]
            subprocess.run(command, check=True, cwd=ROOT)
            page = browser.new_page(viewport={"width": 1000, "height": 1180}, color_scheme="light")
            page.goto((out / "report.html").as_uri())
            page.wait_for_selector("html[data-ready=yes]")
            if sweep == "quickstart":
                save(page.screenshot(), "report")
            for name, selector in charts.items():
                take(page, selector, name)
            page.close()
        browser.close()


def take(page: Page, selector: str, name: str) -> None:
    """Take the picture of one figure, less the control below it."""
    page.add_style_tag(content="figure details { display: none; } .modebar-container { display: none; }")
    save(page.locator(selector).first.screenshot(), name)


def save(data: bytes, name: str) -> None:
    """Write a picture, small."""
    image = Image.open(io.BytesIO(data)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
