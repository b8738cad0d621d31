"""The gRPC transport: converts protobuf messages and calls the data plane, nothing else."""

import os

# Workers are started with exec and have no use for grpc's fork handlers, which warn at each start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
