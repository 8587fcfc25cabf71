"""A folder that looks like an msmodeling checkout: its interface, with answers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODEL = {"model_type": "tiny", "num_attention_heads": 8, "num_hidden_layers": 4}

FILES = {
    "tensor_cast/__init__.py": "",
    "tensor_cast/device.py": """
from dataclasses import dataclass, replace

class Grid:
    class grid:
        nelement = staticmethod(lambda: 64)

@dataclass
class DeviceProfile:
    name: str
    vendor: str = ""
    comm_grid = Grid

TEST_DEVICE = DeviceProfile(name="TEST_DEVICE", vendor="ACME")
OTHER = replace(TEST_DEVICE, name="ATLAS_900_64G")
""",
    "tensor_cast/device_profiles/__init__.py": "",
    "tensor_cast/core/__init__.py": "",
    "tensor_cast/core/quantization/__init__.py": "",
    "tensor_cast/core/quantization/datatypes.py": """
QuantizeLinearAction = QuantizeAttentionAction = str
""",
    "tensor_cast/core/user_config.py": """
class UserInputConfig:
    def __init__(self, **fields):
        self.__dict__.update(fields)
""",
    "tensor_cast/core/compilation_config.py": """
APPLIED = []
def apply_compilation_config(names):
    APPLIED[:] = names
""",
    "tensor_cast/core/input_generator.py": """
from dataclasses import dataclass

@dataclass
class RequestInfo:
    query_len: int
    seq_len: int
    concurrency: int
    is_decode: bool
    image_batch_size: object
    image_height: object
    image_width: object

def generate_inputs():
    raise AssertionError
""",
    "tensor_cast/performance_model/__init__.py": "",
    "tensor_cast/performance_model/op_invoke_info.py": """
class Registry(dict):
    pass

class Region:
    equivalent_tensor_id_manager = Registry()
    root_region_id_to_reference_count = {}
    region_id_to_root_region_id = {}
""",
    "tensor_cast/core/model_runner.py": '''
import logging
import warnings
from types import SimpleNamespace

from tensor_cast.core import compilation_config
from tensor_cast.core.input_generator import generate_inputs
from tensor_cast.device import TEST_DEVICE
from tensor_cast.performance_model.op_invoke_info import Region

BUILT = []

class Estimator:
    def __init__(self):
        self.op_records = []

class ModelRunner:
    """Latency: tokens in seconds. Activation: 1 GiB, and 1 more for all that an earlier call left behind."""

    def __init__(self, user_input):
        if user_input.num_hidden_layers_override == 3:
            raise ValueError("three layers are too few.\\nSecond line")
        BUILT.append(self)
        self.user_input = user_input
        self.device_profile = TEST_DEVICE
        self.model_weight_size_gb = 20.0
        self.perf_models = [Estimator()]
        self.requests = []

    def run_inference(self, requests, generate_inputs_func, runtime_observer):
        assert generate_inputs_func is generate_inputs
        logging.getLogger(__name__).warning("a line per operator")
        warnings.warn("a remark of torch")
        (request,) = requests
        self.requests.append(request)
        self.flags = list(compilation_config.APPLIED)
        if request.query_len == 13:
            assert request.query_len != 13
        leftovers = (
            Region.equivalent_tensor_id_manager, Region.root_region_id_to_reference_count,
            Region.region_id_to_root_region_id, self.perf_models[0].op_records,
        )
        activation = 1.0 + sum(len(leftover) > 0 for leftover in leftovers)
        for leftover in leftovers[:3]:
            leftover[id(request)] = 1
        leftovers[3].append(request)
        self.model_weight_size_gb -= 5.0
        seconds = request.query_len * request.concurrency
        empirical = self.user_input.performance_model == "profiling"
        if empirical:
            result = lambda source: SimpleNamespace(
                execution_time_s=seconds / 4, statistics={"source": source} if source else {})
            events = [SimpleNamespace(perf_results={"empirical": result(source)})
                      for source in ("MEASURED", "MEASURED", "INTERPOLATED", None)]
            runtime_observer(SimpleNamespace(event_list=events))
        else:
            runtime_observer(SimpleNamespace(event_list=[SimpleNamespace(perf_results={"analytic": None})]))
        name = "empirical" if empirical else "analytic"
        return SimpleNamespace(
            execution_time_s={name: float(seconds)},
            breakdowns={name + "_OpBound": {"memory_bound": float(seconds), "communication_bound": 0,
                                            "compute_bound_mma": 0, "compute_bound_gp": 0}},
            total_device_memory_gb=64.0, model_weight_size_gb=self.model_weight_size_gb,
            kv_cache_size_gb=1.0, model_activation_size_gb=activation,
            reserved_memory_gb=self.user_input.reserved_memory_gb, device_memory_available_gb=2.0,
        )
''',
    "tensor_cast/core/model_source_security.py": """
def validate_local_model_path(path):
    if (path / "unsafe").exists():
        raise ValueError(f"Local model path must not contain unsafe: {path}")
""",
}


def make_checkout(root: Path) -> Path:
    """Write the folder and return it."""
    for name, text in FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    make_model(root / "tests" / "assets" / "model_config" / "tiny")
    return root


def make_model(folder: Path, **changes: Any) -> Path:
    """Write a model folder and return it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**MODEL, **changes}), encoding="utf-8")
    return folder


def make_database(folder: Path) -> Path:
    """Write a folder of measured operators, and next to it the one of communication, and return it."""
    folder.mkdir(parents=True)
    (folder / "op_mapping.yaml").write_text("communication_data_ref: ../hccl\n", encoding="utf-8")
    (folder / "MatMul.csv").write_text("shape,us\n1,2\n", encoding="utf-8")
    (folder.parent / "hccl").mkdir()
    (folder.parent / "hccl" / "hcom_allReduce_.csv").write_text("bytes,us\n1,2\n", encoding="utf-8")
    return folder
