"""A decode loop in plain PyTorch: prefill, then rounds of tree verify and commit, on random weights (one KDA layer).

Each round drafts a tree of four nodes, verifies it in one call, accepts the path that a toy rule picks, and commits it. At the end
the state must equal, bit for bit, that of plain decoding of the accepted tokens. Needs torch.
"""

import torch

import libkda

HEADS, DIM, PROMPT, ROUNDS, PARENTS = 4, 64, 23, 6, [-1, 0, 0, 1]
WIDTH = HEADS * DIM


class Layer(torch.nn.Module):
    """Projections of a KDA layer: hidden [T, WIDTH] to q, k, v, gate and step of every token."""

    def __init__(self):
        super().__init__()
        self.qkvg = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.step = torch.nn.Linear(WIDTH, HEADS, bias=False)
        self.A_log = torch.nn.Parameter(torch.zeros(HEADS))
        self.dt_bias = torch.nn.Parameter(torch.zeros(WIDTH))

    def inputs(self, hidden):
        q, k, v, a = (part.unflatten(-1, (HEADS, DIM)) for part in self.qkvg(hidden).chunk(4, dim=-1))
        return dict(q=q, k=k, v=v, a=a, b=self.step(hidden), A_log=self.A_log.detach(), dt_bias=self.dt_bias.detach(),
                    out=torch.empty(hidden.shape[0], HEADS, DIM))


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    layer = Layer()
    nodes = len(PARENTS)
    plan = libkda.plan(backend="cpu", heads=HEADS, key_dim=DIM, io_dtype="float32", max_tokens=PROMPT, max_nodes=nodes)
    state = torch.zeros(2, HEADS, DIM, DIM)  # slot 0: speculation, slot 1: plain decoding
    records = torch.zeros(1, plan.record_row_bytes, dtype=torch.uint8)
    slot, plain = torch.tensor([0]), torch.tensor([1])

    prompt = torch.randn(PROMPT, WIDTH)
    cuts = torch.tensor([0, PROMPT])
    plan.extend(**layer.inputs(prompt), state=state, slots=slot, cu_seqlens=cuts)
    plan.move(source=state, source_slots=slot, destination_slots=plain)

    accepted_tokens = 0
    for _ in range(ROUNDS):
        draft = torch.randn(nodes, WIDTH)
        arguments = layer.inputs(draft)
        plan.verify(**arguments, state=state, slots=slot, cu_seqlens=torch.tensor([0, nodes]), parents=torch.tensor(PARENTS),
                    records=records)
        tip = int(arguments["out"].flatten(1).sum(1).argmax())  # a real loop compares the target's tokens with the draft's
        plan.commit(state=state, slots=slot, tips=torch.tensor([tip]), records=records)

        path = []
        while tip >= 0:
            path.insert(0, tip)
            tip = PARENTS[tip]
        for node in path:  # the same tokens, one by one
            token = layer.inputs(draft)
            plan.decode(**{name: value[node:node + 1] if name in ("q", "k", "v", "a", "b", "out") else value for name, value in token.items()},
                        state=state, slots=plain)
        accepted_tokens += len(path)

    assert torch.equal(state[0], state[1]), "verify and commit must give the bits of plain decoding"
    print(f"{ROUNDS} rounds, {accepted_tokens} tokens accepted; the state equals that of plain decoding bit for bit")


if __name__ == "__main__":
    main()
