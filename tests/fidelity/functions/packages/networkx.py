"""A graph of the module."""

import networkx

GRAPH = networkx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")], name="own")


def work():
    return [networkx.shortest_path(GRAPH, "a", "c"), networkx.degree_centrality(GRAPH), list(networkx.topological_sort(GRAPH))]


def random():
    return sorted(networkx.gnp_random_graph(30, 0.5).edges)[:60]


def fail():
    networkx.shortest_path(GRAPH, "c", "a")
