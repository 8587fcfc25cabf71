"""What persists: keys, records, table identity, the shape store, the memo."""

from cache.errors import ShapecastError
from cache.identity import TableIdentity
from cache.shapes import DeviceMemory, ForwardLatencyRecord, ForwardShapeKey
from cache.store import ShapeStore
from cache.table import ForwardLatencyTable

__all__ = [
    "DeviceMemory",
    "ForwardLatencyRecord",
    "ForwardLatencyTable",
    "ForwardShapeKey",
    "ShapeStore",
    "ShapecastError",
    "TableIdentity",
]
