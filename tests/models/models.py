"""Models of the `transformers` package, with tiny configurations and random weights, on `tpu` against torch's CPU device.

    python tests/models/models.py                      runs all of them, and writes tests/models/found.json and docs/conformance.md
    python tests/models/models.py Llama T5             runs these; what was found of others stays
    python tests/models/models.py --cells forward      runs these columns only

Each model runs in a process of its own. A cell is the largest difference from the CPU, relative to the largest value of the tensor; it fails
above LIMIT. What is generated has to be the same tokens.
"""

import argparse
import copy
import json
import pathlib
import subprocess
import sys
import time
import traceback
import warnings

HERE = pathlib.Path(__file__).resolve().parent
FOUND = HERE / "found.json"
LIMIT = 1e-4
NEW_TOKENS = 6
VOCABULARY = 99
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
DECODER = {
    **SMALL,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokens(batch=2, length=10, seed=0):
    """Token numbers, and a mask with one padded sequence."""
    import torch

    made = torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(made)
    mask[0, :3] = 0
    made[0, :3] = 0
    return {"input_ids": made, "attention_mask": mask}


def image(size):
    import torch

    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def decoder(cls, config):
    """A causal language model: arguments of the forward pass and of generate."""
    given = tokens()
    return cls(config), {**given, "labels": given["input_ids"]}, given


def bert():
    from transformers import BertConfig, BertForMaskedLM

    given = tokens()
    config = BertConfig(**SMALL, **NO_DROPOUT, max_position_embeddings=64)
    return BertForMaskedLM(config), {**given, "labels": given["input_ids"]}, None


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    zero = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return decoder(GPT2LMHeadModel, GPT2Config(**sizes, **zero, pad_token_id=0, eos_token_id=None, bos_token_id=None))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return decoder(LlamaForCausalLM, LlamaConfig(**DECODER, bos_token_id=None))


def qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return decoder(Qwen3ForCausalLM, Qwen3Config(**DECODER))


def qwen3_moe():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    model, given, prompt = decoder(Qwen3MoeForCausalLM, Qwen3MoeConfig(**DECODER, **experts))
    return model, {**given, "output_router_logits": True}, prompt


def gemma():
    from transformers import GemmaConfig, GemmaForCausalLM

    return decoder(GemmaForCausalLM, GemmaConfig(**DECODER, bos_token_id=None))


def mistral():
    from transformers import MistralConfig, MistralForCausalLM

    return decoder(MistralForCausalLM, MistralConfig(**DECODER, sliding_window=6, bos_token_id=None))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    given = tokens()
    return T5ForConditionalGeneration(config), {**given, "labels": tokens(seed=2)["input_ids"]}, given


def vit():
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {k: v for k, v in SMALL.items() if k != "vocab_size"}
    config = ViTConfig(**sizes, **NO_DROPOUT, image_size=16, patch_size=4, num_labels=5)
    return ViTForImageClassification(config), {"pixel_values": image(16), "labels": torch.tensor([1, 3])}, None


def clip():
    from transformers import CLIPConfig, CLIPModel

    sizes = {k: v for k, v in SMALL.items() if k != "vocab_size"}
    text = {**SMALL, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1, "bos_token_id": 1, "pad_token_id": 0}
    config = CLIPConfig(text_config=text, vision_config={**sizes, "image_size": 16, "patch_size": 4}, projection_dim=16)
    return CLIPModel(config), {**tokens(), "pixel_values": image(16), "return_loss": True}, None


def whisper():
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=16,
        max_target_positions=32,
        dropout=0.0,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    sound = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(1))
    model = WhisperForConditionalGeneration(config)
    model.generation_config.eos_token_id = None  # all tokens are generated
    return model, {"input_features": sound, "labels": tokens(seed=2)["input_ids"]}, {"input_features": sound}


MODELS = {
    "BERT": bert,
    "GPT-2": gpt2,
    "Llama": llama,
    "Qwen3": qwen3,
    "Qwen3-MoE": qwen3_moe,
    "Gemma": gemma,
    "Mistral": mistral,
    "T5": t5,
    "ViT": vit,
    "CLIP": clip,
    "Whisper": whisper,
}
CELLS = ["forward", "loss and gradients", "step of AdamW", "generate, dynamic cache", "generate, static cache"]
KINDS = ["eager", "compiled"]


# ---- one model --------------------------------------------------------------------------------------------------------


def to(device, tree):
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), tree)


def difference(got, want):
    """The largest difference of corresponding tensors, each relative to its largest value."""
    import torch

    worst = 0.0
    if len(got) != len(want):
        raise AssertionError(f"{len(got)} tensors instead of {len(want)}")
    for name, w in want.items():
        g = got[name].detach().cpu()
        if g.shape != w.shape or g.dtype != w.dtype:
            raise AssertionError(f"{name}: {g.dtype}{list(g.shape)} instead of {w.dtype}{list(w.shape)}")
        w = w.detach()
        if not torch.equal(g.isfinite(), w.isfinite()):
            raise AssertionError(f"{name}: other elements are finite")
        apart = (g - w)[w.isfinite()].abs()
        if apart.numel():
            worst = max(worst, float(apart.max() / w[w.isfinite()].abs().max().clamp(min=1e-3)))
    return worst


def outputs(found):
    """The floating-point tensors of a model's output."""
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves_with_path(dict(found.items()))
    return {pytree.keystr(k): v for k, v in leaves if hasattr(v, "is_floating_point") and v.is_floating_point()}


def forward(model, call, given):
    import torch

    with torch.no_grad():
        return outputs(
            call(**given, use_cache=False) if model.config.is_encoder_decoder or hasattr(model, "lm_head") else call(**given)
        )


def gradients(model, call, given):
    model.zero_grad()
    loss = call(**given).loss
    loss.backward()
    return {"loss": loss, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


def step(model, call, given, compiled):
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)  # eps: where a gradient is zero, its sign is noise
    gradients(model, call, given)
    (torch.compile(optimizer.step, backend="tpu") if compiled else optimizer.step)()
    return {n: p.detach() for n, p in model.named_parameters()}


def generate(model, given, cache):
    return model.generate(
        **given, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, cache_implementation=cache
    )


def one(name, wanted):
    """Runs a model; {"cells": {cell: {kind: difference or text of an error}}, ...}."""
    import torch

    from torch_tpu import _core

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model, given, prompt = MODELS[name]()
    model.eval()
    for p in model.parameters():  # zeros and ones would hide faults
        p.data.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.02)
    cells, faults = {c: {} for c in CELLS}, []
    there = to("tpu", given)
    torch.tpu.init()

    def measure(cell, kind, fn):
        if wanted not in cell:
            return
        torch._dynamo.reset()
        started = time.monotonic()
        try:
            found = fn()
        except Exception as error:
            found = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            faults.append(f"{cell}, {kind}: {traceback.format_exc()}")
        cells[cell][kind] = found
        print(f"{name}: {cell}, {kind}: {found} ({time.monotonic() - started:.1f} s)", file=sys.stderr, flush=True)

    def fresh():
        made = copy.deepcopy(model).to("tpu")
        made.tie_weights()
        return made

    reference = copy.deepcopy(model)
    want = {
        "forward": forward(reference, reference, given),
        "loss and gradients": gradients(reference, reference, given),
    }
    want["loss and gradients"] = {k: v.clone() for k, v in want["loss and gradients"].items()}
    want["step of AdamW"] = step(reference, reference, given, False)
    for kind in KINDS:
        compiled = kind == "compiled"

        def run(fn, *more, compiled=compiled):
            moved = fresh()
            return fn(moved, torch.compile(moved, backend="tpu") if compiled else moved, there, *more)

        measure("forward", kind, lambda run=run: difference(run(forward), want["forward"]))
        measure("loss and gradients", kind, lambda run=run: difference(run(gradients), want["loss and gradients"]))
        measure("step of AdamW", kind, lambda run=run, c=compiled: difference(run(step, c), want["step of AdamW"]))
    for cache in ("dynamic", "static") if prompt is not None else ():
        expected = generate(copy.deepcopy(model), prompt, cache) if wanted in f"generate, {cache} cache" else None
        for kind in KINDS:

            def run(cache=cache, compiled=kind == "compiled", expected=expected):
                moved = fresh()
                if compiled and cache == "dynamic":
                    moved.forward = torch.compile(moved.forward, backend="tpu", dynamic=True)
                if not compiled:
                    moved.generation_config.disable_compile = True
                got = generate(moved, to("tpu", prompt), cache)
                if not torch.equal(got.cpu(), expected):
                    raise AssertionError(f"other tokens: {got.cpu().tolist()} instead of {expected.tolist()}")
                if cache == "static":  # all programs are there
                    torch.tpu.synchronize()
                    before = _core.stats()
                    generate(moved, to("tpu", prompt), cache)
                    torch.tpu.synchronize()
                    after = _core.stats()
                    made = sum(after[k] - before[k] for k in ("compiles", "disk_hits"))
                    if made:
                        raise AssertionError(f"{made} programs were made when the same was generated again")
                return 0.0

            measure(f"generate, {cache} cache", kind, run)
    return {"cells": cells, "faults": faults, "fell_back": {k: v for k, v in _core.fallback_counts().items() if v}}


# ---- all of them ------------------------------------------------------------------------------------------------------


def passes(found):
    return isinstance(found, float) and found <= LIMIT


def run(name, cells, timeout):
    command = [sys.executable, __file__, "--one", name, "--cells", cells]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        text = f"the process ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        text = f"more than {timeout} s"
    return {"cells": {c: dict.fromkeys(KINDS, text) for c in CELLS if cells in c}, "faults": [text], "fell_back": {}}


def keep(name, found):
    """Puts what was found of a model into found.json."""
    import torch
    import transformers

    kept = json.loads(FOUND.read_text()) if FOUND.exists() else {"models": {}}
    kept |= {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "limit": LIMIT}
    models = kept["models"]
    before = models.get(name, {"cells": {c: {} for c in CELLS}, "fell_back": []})
    cells = {c: found["cells"].get(c) or before["cells"].get(c, {}) for c in CELLS}
    models[name] = {"cells": cells, "fell_back": sorted({*before["fell_back"], *found["fell_back"]})}
    kept["models"] = {n: models[n] for n in MODELS if n in models}
    FOUND.write_text(json.dumps(kept, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], help="all, when none is named")
    parser.add_argument("--cells", default="", metavar="TEXT", help="columns whose title contains this")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=int, default=1800, help="seconds for one model")
    a = parser.parse_args()
    if a.one:
        print(json.dumps(one(a.one, a.cells)))
        return
    good = True
    for name in a.names or MODELS:
        found = run(name, a.cells, a.timeout)
        keep(name, found)
        for fault in found["faults"]:
            print(f"\n---- {name}: {fault}")
        print(f"{name}: fell back: {found['fell_back'] or 'nothing'}", flush=True)
        good &= all(passes(v) for cell in found["cells"].values() for v in cell.values())
    subprocess.run([sys.executable, HERE.parent / "opinfo/conformance.py", "docs"], check=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
