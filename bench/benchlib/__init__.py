"""The library that the benchmarks share: starting a benchmark (`launch`), its command line (`command`), the binary that is measured
(`pilot`), a daemon as a child process (`daemon`), the load client (`load`), the machine's processes (`proc`), statistics (`stats`),
tables and bars (`report`) and pictures (`pictures`).

It has no experiment, no workload and no figure of a paper, and imports no benchmark. No benchmark imports another one: code that two of
them need is here.
"""
