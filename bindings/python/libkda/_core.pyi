"""libkda's C ABI for Python. A tensor is anything with DLPack, or a View of it; see docs/python.md for shapes and dtypes."""

from typing import Any, Iterable, Protocol

from .errors import Refusal

class SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

version: str
abi_version: int

class View:
    def __init__(self, array: SupportsDLPack, dtype: str) -> None: ...
    @property
    def array(self) -> Any: ...

Tensor = SupportsDLPack | View

class Context:
    def __init__(self, threads: int = 0, cpu_target: str = "", cuda_device: int = 0) -> None: ...
    def describe(self) -> str: ...
    def can_run(
        self, *,
        backend: str = ..., operations: Iterable[str] = ..., layers: int = ..., max_rows: int = ...,
        max_tokens: int = ..., max_nodes: int = ..., max_snapshots: int = ..., heads: int, value_heads: int = ...,
        key_dim: int, value_dim: int = ..., conv_width: int = ..., io_dtype: str = ..., gate_dtype: str = ...,
        beta_dtype: str = ..., state_dtype: str = ..., conv_state_dtype: str = ..., conv_weight_dtype: str = ...,
        state_layout: str = ..., conv_layout: str = ..., gate: str = ..., beta: str = ..., qk_l2norm: bool = ...,
        extend_numerics: str = ..., verify_numerics: str = ..., null_slot0: bool = ..., single_root: bool = ...,
        check_values: bool = ..., alignment: int = ..., max_workspace_bytes: int = ..., kernels: str = ...,
    ) -> Refusal | None: ...

class Plan:
    def __init__(
        self, context: Context, *,
        backend: str = ..., operations: Iterable[str] = ..., layers: int = ..., max_rows: int = ...,
        max_tokens: int = ..., max_nodes: int = ..., max_snapshots: int = ..., heads: int, value_heads: int = ...,
        key_dim: int, value_dim: int = ..., conv_width: int = ..., io_dtype: str = ..., gate_dtype: str = ...,
        beta_dtype: str = ..., state_dtype: str = ..., conv_state_dtype: str = ..., conv_weight_dtype: str = ...,
        state_layout: str = ..., conv_layout: str = ..., gate: str = ..., beta: str = ..., qk_l2norm: bool = ...,
        extend_numerics: str = ..., verify_numerics: str = ..., null_slot0: bool = ..., single_root: bool = ...,
        check_values: bool = ..., alignment: int = ..., max_workspace_bytes: int = ..., kernels: str = ...,
    ) -> None: ...
    def describe(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def workspace_alignment(self) -> int: ...
    @property
    def record_row_bytes(self) -> int: ...
    @property
    def record_node_bytes(self) -> int: ...
    @property
    def conv_record_row_bytes(self) -> int: ...
    def conv_record_row_bytes_for(self, channels: int) -> int: ...
    def candidates(self, operation: str) -> list[dict[str, Any]]: ...
    def extend(
        self, *,
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor | None = ...,
        dt_bias: Tensor | None = ..., out: Tensor, scale: float | None = ..., lower_bound: float | None = ...,
        cu_seqlens: Tensor | None = ..., slots: Tensor | None = ..., has_state: Tensor | None = ...,
        dst_slots: Tensor | None = ..., state: Tensor | None = ..., dst_state: Tensor | None = ...,
        snapshot_rows: Tensor | None = ..., snapshot_positions: Tensor | None = ...,
        snapshot_slots: Tensor | None = ..., snapshots: Tensor | None = ..., workspace: Tensor | None = ...,
        device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...
    def decode(
        self, *,
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor | None = ...,
        dt_bias: Tensor | None = ..., out: Tensor, scale: float | None = ..., lower_bound: float | None = ...,
        cu_seqlens: Tensor | None = ..., slots: Tensor | None = ..., has_state: Tensor | None = ...,
        dst_slots: Tensor | None = ..., state: Tensor | None = ..., dst_state: Tensor | None = ...,
        workspace: Tensor | None = ..., device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...
    def verify(
        self, *,
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor | None = ...,
        dt_bias: Tensor | None = ..., out: Tensor, scale: float | None = ..., lower_bound: float | None = ...,
        cu_seqlens: Tensor | None = ..., slots: Tensor | None = ..., has_state: Tensor | None = ...,
        dst_slots: Tensor | None = ..., state: Tensor | None = ..., dst_state: Tensor | None = ...,
        parents: Tensor | None = ..., records: Tensor | None = ..., record_rows: Tensor | None = ...,
        node_states: Tensor | None = ..., node_slots: Tensor | None = ..., node_pool: Tensor | None = ...,
        pending_tips: Tensor | None = ..., pending_record_rows: Tensor | None = ...,
        snapshot_rows: Tensor | None = ..., snapshot_positions: Tensor | None = ...,
        snapshot_slots: Tensor | None = ..., snapshots: Tensor | None = ..., workspace: Tensor | None = ...,
        device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...
    def commit(
        self, *,
        tips: Tensor, records: Tensor, record_rows: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
        slots: Tensor | None = ..., has_state: Tensor | None = ..., dst_slots: Tensor | None = ...,
        state: Tensor | None = ..., dst_state: Tensor | None = ..., snapshot_rows: Tensor | None = ...,
        snapshot_positions: Tensor | None = ..., snapshot_slots: Tensor | None = ..., snapshots: Tensor | None = ...,
        state_table: Tensor | None = ..., dst_table: Tensor | None = ..., record_table: Tensor | None = ...,
        snapshot_table: Tensor | None = ..., layers: int | None = ..., state_layer_stride: int | None = ...,
        dst_layer_stride: int | None = ..., record_layer_stride: int | None = ...,
        snapshot_layer_stride: int | None = ..., workspace: Tensor | None = ..., device_status: Tensor | None = ...,
        stream: int | None = ...,
    ) -> None: ...
    def move(
        self, *,
        source: Tensor, destination: Tensor | None = ..., source_slots: Tensor, destination_slots: Tensor,
        source_table: Tensor | None = ..., destination_table: Tensor | None = ..., layers: int | None = ...,
        source_layer_stride: int | None = ..., destination_layer_stride: int | None = ...,
        workspace: Tensor | None = ..., device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...
    def conv_extend(
        self, *,
        x: Tensor, weight: Tensor, bias: Tensor | None = ..., out: Tensor, cu_seqlens: Tensor | None = ...,
        slots: Tensor | None = ..., has_state: Tensor | None = ..., dst_slots: Tensor | None = ...,
        state: Tensor | None = ..., dst_state: Tensor | None = ..., snapshot_rows: Tensor | None = ...,
        snapshot_positions: Tensor | None = ..., snapshot_slots: Tensor | None = ..., snapshots: Tensor | None = ...,
        parents: Tensor | None = ..., records: Tensor | None = ..., record_rows: Tensor | None = ...,
        pending_tips: Tensor | None = ..., pending_record_rows: Tensor | None = ..., workspace: Tensor | None = ...,
        device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...
    def conv_decode(
        self, *,
        x: Tensor, weight: Tensor, bias: Tensor | None = ..., out: Tensor, cu_seqlens: Tensor | None = ...,
        slots: Tensor | None = ..., has_state: Tensor | None = ..., dst_slots: Tensor | None = ...,
        state: Tensor | None = ..., dst_state: Tensor | None = ..., snapshot_rows: Tensor | None = ...,
        snapshot_positions: Tensor | None = ..., snapshot_slots: Tensor | None = ..., snapshots: Tensor | None = ...,
        parents: Tensor | None = ..., records: Tensor | None = ..., record_rows: Tensor | None = ...,
        pending_tips: Tensor | None = ..., pending_record_rows: Tensor | None = ..., workspace: Tensor | None = ...,
        device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...
    def conv_verify(
        self, *,
        x: Tensor, weight: Tensor, bias: Tensor | None = ..., out: Tensor, cu_seqlens: Tensor | None = ...,
        slots: Tensor | None = ..., has_state: Tensor | None = ..., dst_slots: Tensor | None = ...,
        state: Tensor | None = ..., dst_state: Tensor | None = ..., snapshot_rows: Tensor | None = ...,
        snapshot_positions: Tensor | None = ..., snapshot_slots: Tensor | None = ..., snapshots: Tensor | None = ...,
        parents: Tensor | None = ..., records: Tensor | None = ..., record_rows: Tensor | None = ...,
        pending_tips: Tensor | None = ..., pending_record_rows: Tensor | None = ..., workspace: Tensor | None = ...,
        device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...
    def conv_commit(
        self, *,
        tips: Tensor, records: Tensor, record_rows: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
        slots: Tensor | None = ..., has_state: Tensor | None = ..., dst_slots: Tensor | None = ...,
        state: Tensor | None = ..., dst_state: Tensor | None = ..., snapshot_rows: Tensor | None = ...,
        snapshot_positions: Tensor | None = ..., snapshot_slots: Tensor | None = ..., snapshots: Tensor | None = ...,
        state_table: Tensor | None = ..., dst_table: Tensor | None = ..., record_table: Tensor | None = ...,
        snapshot_table: Tensor | None = ..., layers: int | None = ..., state_layer_stride: int | None = ...,
        dst_layer_stride: int | None = ..., record_layer_stride: int | None = ...,
        snapshot_layer_stride: int | None = ..., workspace: Tensor | None = ..., device_status: Tensor | None = ...,
        stream: int | None = ...,
    ) -> None: ...
    def conv_move(
        self, *,
        source: Tensor, destination: Tensor | None = ..., source_slots: Tensor, destination_slots: Tensor,
        source_table: Tensor | None = ..., destination_table: Tensor | None = ..., layers: int | None = ...,
        source_layer_stride: int | None = ..., destination_layer_stride: int | None = ...,
        workspace: Tensor | None = ..., device_status: Tensor | None = ..., stream: int | None = ...,
    ) -> None: ...

class Slot:
    @property
    def id(self) -> int: ...
    @property
    def generation(self) -> int: ...

class Pool:
    def __init__(self, plan: Plan, slots: int, layers: int = 0, record_rows: int = 0) -> None: ...
    @staticmethod
    def planned_bytes(plan: Plan, slots: int, layers: int = 0, record_rows: int = 0) -> int: ...
    def acquire(self) -> Slot: ...
    def release(self, slot: Slot) -> None: ...
    def fork(self, slot: Slot) -> Slot: ...
    def check(self, slot: Slot) -> None: ...
    @property
    def free_slots(self) -> int: ...
    def snapshot(self, slot: Slot) -> bytes: ...
    def restore(self, slot: Slot, image: bytes) -> None: ...
    def set_pending(self, slot: Slot, tip: int, record_row: int) -> None: ...
    def pending(self, slot: Slot) -> tuple[int, int] | None: ...
    def clear_pending(self, slot: Slot) -> None: ...
    def state(self, layer: int = 0) -> SupportsDLPack: ...
    def conv_state(self, layer: int = 0) -> SupportsDLPack: ...
    def records(self, layer: int = 0) -> SupportsDLPack: ...
    def conv_records(self, layer: int = 0) -> SupportsDLPack: ...

def tensor_arguments(operation: str) -> list[tuple[str, bool]]: ...
def status_text(status: int) -> tuple[str, str, str]: ...
