"""The sweep."""
