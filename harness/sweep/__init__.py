"""The sweep: named workloads over numbers of streams, threads of the disk tier, and arms."""
