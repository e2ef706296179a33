"""Language models from folders, GGUF files and adapters, with sentences: nothing is downloaded, and the attack reads them."""

import json

import pytest
import torch

from leakgauge import share
from leakgauge.attacks import token_spans
from leakgauge.channels import Gradient
from leakgauge.data.sentences import read_sentences
from leakgauge.errors import BadInput
from leakgauge.integrations.language import is_text, load_language, read_ids
from leakgauge.models import MaskedTokens, NextToken

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 64,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 300,
}  # fmt: skip
TEXT = ["Call Anna at nine.", "No."]


@pytest.fixture
def config(tmp_path):
    def write(settings, name="config.json"):
        (tmp_path / name).write_text(json.dumps(settings))
        return str(tmp_path / name)

    return write


def rows(ids):
    return sorted(ids.tolist())


def test_sentences_of_a_random_decoder_are_read_byte_by_byte(config):
    found = load_language(config(LLAMA))
    assert (found.kind, found.loss) == ("causal", NextToken(0))
    ids = found.ids(TEXT)
    assert ids.shape == (2, 20)
    assert found.tokens(ids[0]) == list(TEXT[0])
    x, y = found.private(ids, None)
    assert x is y
    victim = found.victim(20)
    seen = share(victim, Gradient(), x, y)
    got = token_spans()(victim, seen)
    assert rows(got.x) == rows(ids)
    assert got.certified.all()


def test_padding_changes_nothing_in_the_places_before_it(config):
    """Causal models need no mask, encoders get one."""
    for settings in (LLAMA, BERT):
        found = load_language(config(settings))
        short, long = found.ids(["abc"], 3), found.ids(["abc"], 9)
        with torch.no_grad():
            torch.testing.assert_close(found.model(long)[:, :3], found.model(short), atol=1e-6, rtol=1e-5)


def test_a_masked_language_model_asks_for_some_tokens_of_every_sentence(config):
    found = load_language(config(BERT))
    assert (found.kind, found.loss) == ("masked", MaskedTokens(0))
    ids = found.ids(TEXT)
    x, y = found.private(ids, None, seed=3)
    asked = x != ids
    assert asked.any(1).all()
    assert torch.equal(x[asked], torch.ones_like(x[asked]))
    assert torch.equal(y[asked], ids[asked])
    assert (y[~asked] == -100).all()


def test_labels_make_a_classifier(config, tmp_path):
    (tmp_path / "a.tsv").write_text("1\tgood\n0\tbad\n")
    found = load_language(config(LLAMA), classes=2)
    ids, labels = read_ids(found, read_sentences(tmp_path / "a.tsv"))
    assert found.kind == "classifier"
    assert found.private(ids, labels)[1].tolist() == [1, 0]
    with pytest.raises(BadInput, match="needs a label for each sentence"):
        found.private(ids, None)
    (tmp_path / "a.tsv").write_text("2\tgood\n0\tbad\n")
    with pytest.raises(BadInput, match="label 2 is too large for a classifier of 2 classes"):
        read_ids(found, read_sentences(tmp_path / "a.tsv"))


def test_the_code_of_a_folder_never_runs(config, tmp_path, monkeypatch):
    """Not even if whoever is asked on the terminal says yes."""
    monkeypatch.setattr("builtins.input", lambda *asked: "y")
    own = tmp_path / "own"
    own.mkdir()
    (own / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    classes = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    settings = {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": classes}
    (own / "config.json").write_text(json.dumps(settings))
    (own / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadInput, match="do not load"):
        load_language(str(own))
    other = tmp_path / "other"
    load_language(config(LLAMA)).model.model.save_pretrained(other)
    (other / "code.py").write_text((own / "code.py").read_text())
    (other / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["code.Own", None]}})
    )
    with pytest.raises(BadInput, match=r"tokenizer in .* does not load"):
        load_language(str(other))
    assert not (tmp_path / "ran").exists()


def test_damaged_files_are_named(config, tmp_path):
    load_language(config(LLAMA)).model.model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(BadInput, match=r"weights in .* do not load"):
        load_language(str(tmp_path / "saved"))
    assert load_language(config({**LLAMA, "architectures": 3})).kind == "causal"


def test_positions_are_those_that_a_sentence_can_fill(config):
    gpt2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12, "vocab_size": 300}
    assert load_language(config(gpt2)).positions == 12
    roberta = load_language(config({**BERT, "model_type": "roberta", "max_position_embeddings": 14}))
    assert roberta.positions == 12
    with torch.no_grad():
        assert roberta.model(roberta.ids(["abcdefghijkl"], 12)).shape[:2] == (1, 12)


def test_weights_of_a_folder(config, tmp_path):
    made = load_language(config(LLAMA), seed=4)
    made.model.model.save_pretrained(tmp_path / "saved")
    again = load_language(str(tmp_path / "saved"))
    ids = made.ids(TEXT)
    assert again.kind == "causal"
    torch.testing.assert_close(again.model(ids), made.model(ids))


def test_only_the_adapter_of_peft_is_shared(config, tmp_path):
    base = load_language(config(LLAMA), seed=4)
    import peft

    base.model.model.save_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(base.model.model, settings)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": str(tmp_path / "base")}))
    found = load_language(str(tmp_path / "adapter"))
    victim = found.victim(20)
    assert all("lora_" in name for name in victim.parameters())
    x, y = found.private(found.ids(TEXT, 20), None)
    got = token_spans()(victim, share(victim, Gradient(), x, y))
    assert rows(got.x) == rows(x)
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": "someone/model"}))
    with pytest.raises(BadInput, match="someone/model"):
        load_language(str(tmp_path / "adapter"))


def write_gguf(path, model):
    """A model of Llama's layout as llama.cpp writes it: rows of q and k in another order, a tokenizer of single letters."""
    import gguf

    config, writer = model.config, gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    letters = [chr(code) for code in range(0x21, 0x7F)] + ["Ġ"]
    tokens = ["<end>", *letters, "ab", *(f"<{k}>" for k in range(config.vocab_size - len(letters) - 2))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def shuffled(w, heads):
        return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    writer.add_tensor("output.weight", weights["lm_head.weight"])
    for k in range(config.num_hidden_layers):
        own = {name.removeprefix(f"model.layers.{k}."): w for name, w in weights.items() if f"layers.{k}." in name}
        for ours, theirs in (
            ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
        ):  # fmt: skip
            writer.add_tensor(f"blk.{k}.{theirs}.weight", own[f"{ours}.weight"])
        for ours, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            writer.add_tensor(f"blk.{k}.attn_{ours}.weight", shuffled(own[f"self_attn.{ours}_proj.weight"], heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_the_model_that_was_written(config, tmp_path, capfd):
    made = load_language(config(LLAMA), seed=4)
    write_gguf(tmp_path / "small.gguf", made.model.model)
    found = load_language(str(tmp_path / "small.gguf"))
    ids = torch.randint(1, 90, (2, 7), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.model(ids), made.model(ids), atol=1e-5, rtol=1e-4)
    assert "".join(found.tokens(found.ids(["Hi all."])[0])) == "Hi all."
    assert "%" not in capfd.readouterr().err  # no progress bar


def test_text_and_images_are_told_apart(config, tmp_path):
    assert is_text(config(LLAMA))
    assert is_text("gpt2")
    assert not is_text("vit")
    assert not is_text("nowhere/x")


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda f: load_language("vit"), "'vit' is no language model"),
        (lambda f: load_language("nothing.gguf"), "there is no nothing.gguf"),
        (lambda f: load_language("x.gguf", kind="masked"), "cannot be loaded as masked"),
        (lambda f: f.ids([""]), "no sentence with a token"),
        (lambda f: f.ids(["abc"], 65), "64 positions, too few for sentences of 65"),
    ],
)
def test_refused(config, use, said):
    found = load_language(config(LLAMA))
    with pytest.raises(BadInput, match=said):
        use(found)
