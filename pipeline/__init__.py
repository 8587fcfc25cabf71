"""The sweep: config, graph, execution, outputs, command line."""
