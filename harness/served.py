"""What all sessions that run vLLM are told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ServedOptions:
    """What the user asked of a session that runs vLLM, checked.

    Attributes:
        out_dir: Gets records, tables and logs.
        work_dir: The tiers' directories are made in it.
        model_dir: The model to serve; None makes or reuses SmolLM2.
        dtype: Number format that servers compute in.
        server_timeout_s: How long a server may take to start.
        keep: Whether the tiers' directories stay.
    """

    out_dir: Path
    work_dir: Path
    model_dir: Path | None
    dtype: str
    server_timeout_s: float
    keep: bool
