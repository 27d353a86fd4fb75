"""The workloads and measured profiles of Pollux (OSDI 2021), and a simulator of its cluster.

The files are those of the artifact: github.com/petuum/adaptdl, branch osdi21-artifact, folder ``simulator``.
"""
