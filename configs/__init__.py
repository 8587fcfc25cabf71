"""Shipped data: sweep configs, device profiles and model configs.

Device profiles are `devices/NAME.yaml`; model configs are `models/OWNER/NAME/config.json`.
"""

from pathlib import Path

CONFIGS_DIR = Path(__file__).parent
DEVICES_DIR = CONFIGS_DIR / "devices"
MODELS_DIR = CONFIGS_DIR / "models"
