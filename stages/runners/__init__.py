"""Model runners: what turns a ForwardShapeKey into a ForwardLatencyRecord."""
