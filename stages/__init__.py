"""Pure stage functions and the domain."""
