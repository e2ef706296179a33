"""Updates that were captured elsewhere: files of tensors by name, checked against the model before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from leakgauge.audit.case import (
    AUXILIARY,
    PUBLIC,
    REARRANGED,
    AuxiliaryImages,
    Case,
    PublicImages,
    accepted_options,
    uses_of,
)
from leakgauge.audit.phrasing import plural
from leakgauge.audit.questions.updates import GUIDED
from leakgauge.audit.records import Captured, Record, Start
from leakgauge.audit.run import attack_captured
from leakgauge.audit.session import embedded, public_images
from leakgauge.channels import FedAvg
from leakgauge.channels.facts import is_weight_update, local_steps
from leakgauge.core import (
    AddsClients,
    Assumption,
    Auxiliary,
    ChangesModel,
    Channel,
    Defended,
    Observation,
    PerSample,
    Protects,
    Signal,
    Tokens,
    Victim,
    as_replayed,
)
from leakgauge.data.folder import SUFFIXES
from leakgauge.data.sentences import read_sentences
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.integrations.adam_updates import refuse_adam_as_sgd
from leakgauge.integrations.captured_file import read_about
from leakgauge.integrations.language import LONGEST, LanguageModel, read_ids
from leakgauge.integrations.resolve import load_model, rearranged
from leakgauge.integrations.setups import data_of
from leakgauge.integrations.tensor_files import COUNT, own_names, read_tensors, refuse_misfits, unwrapped, with_weights
from leakgauge.inversion.labels import batch_size, head_gradient
from leakgauge.inversion.statistics import tracking_layers
from leakgauge.models.pretrained import PRETRAINED

Holds = Literal["gradient", "delta", "weights"]
"""What an update file holds: gradients, new minus old weights, or the new weights themselves."""


def attack_file(
    case: Case,
    update: Path,
    *,
    folder: Path,
    weights: Path | None = None,
    holds: str | None = None,
    truth: Path | None = None,
    named: bool = True,
) -> Record:
    """Attacks the file of one client's update and writes record and pictures into ``folder``, as ``leakgauge attack --update`` does.

    ``weights`` is the file of those that the server had sent, ``holds`` what the update is; by default what the file says, else the
    model's own and a difference. ``truth`` is the private batch, which only the comparison with what was found reads. Unless the case's
    attack is ``named``, one that uses running statistics takes its place where such came with the update.
    """
    said = read_about(update)
    weights, holds = weights or said.weights, holds or said.update_holds or "delta"
    case = replace(case, weights="")  # the record has them among what is known of the update
    victim, language = captured_victim(case, weights)
    start = start_of(case, victim, weights)
    seen = captured_observation(victim, update, case, holds=holds, before=start)
    case = case if named else with_fitting_attack(case, victim, seen)
    about = Captured(
        update=str(update),
        holds=holds,
        weights="" if weights is None else str(weights),
        start=start,
        truth="" if truth is None else str(truth),
        statistics=shares_statistics(victim, seen),
    )
    private = None
    if truth is not None:
        private = (
            read_truth(truth, victim, case) if language is None else read_true_sentences(truth, language, case, victim)
        )
    tokens = None if language is None else language.tokens
    seen = with_auxiliary(seen, victim, case)
    return attack_captured(case, victim, seen, about, folder=folder, truth=private, tokens=tokens)


def _hint(case: Case) -> str:
    """The embedded model is taken where none is named, so a foreign update meets it by mistake."""
    return f" (the model is the embedded {case.model}; name your own as MODEL)" if case.model in PRETRAINED else ""


def captured_victim(case: Case, weights: Path | None) -> tuple[Victim, LanguageModel | None]:
    """The case's model at the weights that the server sent out; its own where no file is given. Also the language model, if it is one.

    It takes sentences of up to ``LONGEST`` tokens, since nobody but the client knows how long its own are.
    """
    language = None
    inner = case.model.removeprefix(REARRANGED)
    if inner in PRETRAINED:
        victim = embedded(replace(case, model=inner)).victim
        model, space, loss = victim.model, victim.space, victim.loss
        model = model if inner == case.model else rearranged(model)
    else:
        loaded = load_model(case.model, seed=case.seed, classes=case.classes, size=case.size)
        model, space, loss, language = loaded.model, loaded.space, loaded.loss, loaded.language
        if language is not None:
            space = language.victim(min(LONGEST, language.positions or LONGEST)).space
        if space is None:
            raise BadInput(
                f"{case.model} does not say which images it takes; return (model, Pixels((3, 32, 32))) from it, with your own channels, "
                "height and width (from leakgauge import Pixels)"
            )
    victim, channel = (
        Victim(model.to(case.device), space, loss=loss, mode=case.mode, name=case.model),
        case.build_channel(),
    )
    if isinstance(channel, ChangesModel):
        victim = channel.changed(victim)
    if weights is not None:
        model = with_weights(victim.model, read_tensors(weights), source=str(weights), hint=_hint(case))
        victim = replace(victim, model=model.to(case.device))
    return victim, language


def start_of(case: Case, victim: Victim, weights: Path | None) -> Start:
    """Where the victim's weights come from. Weights that another seed draws differently are no weights that a server has sent."""
    if weights is not None:
        return "file"
    if case.model.removeprefix(REARRANGED) in PRETRAINED:
        return "fixed"
    again = load_model(case.model, seed=case.seed ^ 1, classes=case.classes).model.state_dict()
    own = victim.model.state_dict()
    return "fixed" if all(torch.equal(value, again[name].to(value)) for name, value in own.items()) else "random"


def _refuse_the_other(sent: Signal, known: Signal, holds: str, *, source: str) -> None:
    """Whole weights lie near the model's own, their difference is short; taken for each other they would be attacked in vain.

    w' are weights where ‖w' − w‖ < ‖w‖ / 2: one round of training moves weights by less than their own length. They are a difference
    where ‖w'‖ < ‖w‖ / 2.
    """
    differences, own = [value - known[name] for name, value in sent.items()], [known[name] for name in sent]
    away, length, model_length = (
        sum(float(value.double().square().sum()) for value in values) ** 0.5
        for values in (differences, sent.values(), own)
    )
    if holds == "delta" and away < model_length / 2:
        raise BadInput(
            f"{source} holds whole weights (they are nearly the model's own), not their difference; add --update-holds weights"
        )
    if holds == "weights" and length < model_length / 2:
        raise BadInput(
            f"{source} holds no weights of this model (they are far shorter than the model's own); "
            "if it is a difference add --update-holds delta"
        )


def _refuse_foreign(sent: Signal, known: Signal, *, source: str) -> None:
    """Refuses new weights that no round of training makes of the model's own: what changed cannot be known without those before.

    For matrices and kernels w', w of independent draws ‖w' − w‖² ≈ ‖w'‖² + ‖w‖² ≥ ‖w‖². Vectors do not count: biases and scales of
    normalisation layers begin alike in every draw.
    """
    both = [(value.double(), known[name].double()) for name, value in sent.items() if value.dim() > 1]
    away, own = (
        sum(float(t.square().sum()) for t in each) for each in ([a - b for a, b in both], [b for _, b in both])
    )
    if both and away >= own:
        raise BadInput(
            f"{source} holds whole weights that are as far from the model's own as other weights would be, so what the client changed "
            "is not known; give the weights that the server had sent with --weights"
        )


def _refuse_another_training(victim: Victim, moved: Signal, case: Case, *, source: str) -> None:
    """Refuses counts of batches that tell of another training than the case: of train mode, or of other local steps.

    What a batch did to running statistics is solved from the number of steps; a wrong one would give wrong statistics in
    silence. Counts that are not whole were changed on the way, by noise or averaging, and say nothing.
    """
    counted = {name: float(by) for name, by in moved.items() if name.endswith(f".{COUNT}")}
    if not any(counted.values()) or not all(by >= 0 and by.is_integer() for by in counted.values()):
        return
    if victim.mode == "eval":
        raise BadInput(
            f"the normalisation layers in {source} have counted batches, so the client computed in train mode; add --mode train"
        )
    before, after, rng = victim.buffers(), victim.buffers(), torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        victim(victim.to_input(victim.space.start(case.batch_size, rng)), buffers=after)
    channel = case.build_channel()
    expected = local_steps(channel, case.images)
    for name, batches in counted.items():
        uses = int(after[name] - before[name])  # a layer that is used twice counts twice
        if batches != uses * expected:
            steps = batches / max(uses, 1)
            wanted = (
                f"give --local-steps {steps:g}" if uses and steps >= 1 and steps.is_integer() else "check the model"
            )
            if case.channel and not isinstance(channel, AddsClients):  # which says its steps itself
                wanted = f"check {case.channel}"
            raise BadInput(
                f"{name} in {source} counts {batches:g} {'batch' if batches == 1 else 'batches'}, where {plural(expected, 'local step')} "
                f"would make {uses * expected}; {wanted}, or leave that name out if these were no steps"
            )


def captured_observation(
    victim: Victim, update: Path, case: Case, *, holds: str = "delta", before: Start = "file"
) -> Observation:
    """What the server saw, from the file of one client's update, or of the sum of several clients' (channel ``aggregate``).

    ``before`` says where the victim's weights come from; new weights without a file of those before must be near the model's own.

    A single local step of plain SGD is turned into its gradient, Δ / −lr. Running statistics among the names, in a file of
    deltas or weights, are what the client shared of them; their counts must fit the case's mode and local steps.
    """
    if holds not in get_args(Holds):
        raise BadInput(f"an update holds {', '.join(get_args(Holds))}, got {holds!r}")
    channel = _channel_of(case, holds)
    parameters, buffers, own = victim.parameters(), victim.buffers(), own_names(victim.model)
    known = {name: value.detach() for name, value in victim.model.state_dict().items()}
    given = unwrapped(read_tensors(update), known)
    refuse_misfits(given, known, source=str(update), hint=_hint(case))
    sent = {own.get(name, name): value.to(victim.device) for name, value in given.items()}
    if holds == "gradient" and (without := [name for name in sent if name in buffers]):
        raise BadInput(
            f"{update} names {without[0]!r}, which has no gradient; if the file holds differences of weights drop "
            "--update-holds gradient"
        )
    if holds in ("weights", "delta"):
        _refuse_the_other({n: v for n, v in sent.items() if n in parameters}, known, holds, source=str(update))
    if holds == "weights" and before != "file":
        _refuse_foreign({n: v for n, v in sent.items() if n in parameters}, known, source=str(update))
    rounded: tuple[Assumption, ...] = ()
    if holds == "weights":
        trained = {name: value for name, value in sent.items() if name in parameters}
        rounded = rounding_told(trained, known, source=str(update))
        sent = {name: value - known[name] for name, value in sent.items()}
    signal = {name: value.to(parameters[name]) for name, value in sent.items() if name in parameters}
    if not any(bool(value.any()) for value in signal.values()):
        raise BadInput(f"{update} changes no trainable parameter; nothing can be read from it")
    shared = {name: buffers[name] + value.to(buffers[name]) for name, value in sent.items() if name in buffers}
    if holds != "gradient":
        refuse_adam_as_sgd(signal, case, source=str(update))
    if holds != "gradient" and not is_weight_update(channel) and isinstance(victim.space, Tokens):
        channel = FedAvg(lr=case.local_lr)  # the attack on text asks for the rounding of weights
    elif holds != "gradient" and not is_weight_update(channel):
        signal = {name: value / -case.local_lr for name, value in signal.items()}
    _refuse_another_training(victim, sent, case, source=str(update))
    assumed = [Assumption(f"batch size known ({case.images})", "deployable")]
    assumed += rounded
    if len(signal) < len(parameters):
        assumed.append(
            Assumption(f"the update holds {len(signal)} of {len(parameters)} trainable tensors", "deployable")
        )
    if victim.mode == "eval" and victim.depends_on_mode():
        assumed.append(
            Assumption("client is taken to compute in eval mode (real training uses train mode)", "diagnostic")
        )
    if shared:
        assumed.append(Assumption("running statistics shared with the update", "deployable"))
    seen = Observation(
        signal=signal,
        channel=channel,
        size=case.images,
        buffers={**buffers, **shared} if shared else None,
        assumptions=tuple(assumed),
    )
    knows = any(isinstance(wanted, Defended) for wanted in case.build_reveal())
    if knows:
        nothing = victim.space.start(1, torch.Generator().manual_seed(0))[:0]
        seen = Defended()(seen, victim, nothing, torch.empty(0), rng=torch.Generator())
    seen = as_replayed(seen, victim, knows=knows)
    refuse_the_opposite(victim, seen, source=str(update))
    return seen


def _channel_of(case: Case, holds: str) -> Channel:
    """How the update was made; refuses what a file of ``holds`` cannot be."""
    channel = case.build_channel()
    if isinstance(channel, PerSample):
        raise BadInput(f"{case.channel} sends no update; a file of one is made by gradients or local training")
    if holds == "gradient" and is_weight_update(channel):
        raise BadInput("a gradient comes from one step; for several local steps give the weights or their difference")
    if holds != "gradient" and isinstance(channel, Protects):
        raise BadInput(f"{case.channel} sends a gradient; save that, and add --update-holds gradient")
    return channel


def with_auxiliary(seen: Observation, victim: Victim, case: Case) -> Observation:
    """The observation of a server that holds images of its own, those of the case's data, where the case reveals such."""
    for wanted in case.build_reveal():
        if isinstance(wanted, AuxiliaryImages):
            images = data_of(case, victim.space.shape).images
            if len(images) < wanted.count:
                raise BadInput(
                    f"the case wants {wanted.count} auxiliary images, but the data holds {len(images)}; ask for fewer"
                )
            others = victim.to_input(victim.space.encode(images[: wanted.count]))
        elif isinstance(wanted, PublicImages):
            others = public_images(wanted, victim, resize=case.resize)
        else:
            continue
        seen = Auxiliary(others)(seen, victim, others[:0], torch.empty(0), rng=torch.Generator())
    return seen


def shares_statistics(victim: Victim, seen: Observation) -> bool:
    """Whether the update brings running statistics that the client's batch has changed."""
    return seen.buffers is not None and victim.mode == "train" and bool(tracking_layers(victim))


def with_fitting_attack(case: Case, victim: Victim, seen: Observation) -> Case:
    """The case with an attack that uses the running statistics, where such came with the update and it takes the case's options."""
    if not shares_statistics(victim, seen) or "statistics" in uses_of(case.attack):
        return case
    guided = replace(case, name="", attack=GUIDED, options={})
    return replace(guided, options=case.options) if set(case.options) <= set(accepted_options(guided)) else case


def read_truth(path: Path, victim: Victim, case: Case) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of the private batch, which the client has and the server has not."""
    given = data_of(replace(case, name="", data=str(path)), victim.space.shape)
    images, labels = given.images, given.labels
    if labels is None or path.suffix.lower() in SUFFIXES:
        raise BadInput(
            f"{path} holds images without labels; save both with np.savez(path, images=…, labels=…), or put the images into one subfolder "
            "for each class of the model"
        )
    if len(images) != case.images:
        raise BadInput(
            f"{path} holds {len(images)} images, where the update was made from {case.images}; give the --batch-size and --local-steps "
            "of the client, or its private images alone"
        )
    return images, labels


def read_true_sentences(path: Path, language: LanguageModel, case: Case, victim: Victim) -> tuple[Tensor, Tensor]:
    """Ids and targets of the client's own sentences, one a line."""
    given = read_sentences(path)
    if len(given.texts) != case.images:
        raise BadInput(
            f"{path} holds {plural(len(given.texts), 'sentence')}, where the update was made from {case.images}; give the --batch-size and "
            "--local-steps of the client, or its private sentences alone"
        )
    ids, labels = read_ids(language, given, length=victim.space.shape[0])
    return language.private(ids, labels, seed=case.seed)


def refuse_in_a_file(case: Case, *, data: str | None) -> None:
    """What a captured update cannot be asked for: the truth is not in it, and of data it needs the server's own alone."""
    known = {spec.partition(":")[0] for spec in case.reveal} - {"size"}
    if known - {AUXILIARY, PUBLIC}:
        raise BadInput(
            f"--update brings what the client sent, running statistics with it; {sorted(known - {AUXILIARY, PUBLIC})[0]} cannot be "
            "revealed, auxiliary:64 can"
        )
    if (data is not None) != (AUXILIARY in known):
        raise BadInput(
            "with --update, --data are the server's own images and belong to --reveal auxiliary:64; give both or none"
        )


NOTHING_ELSE = 0.9
"""A share of the rounding above which an update is refused: the gradient read from it has a cosine below 0.44 to the true one."""


def rounding_told(sent: Signal, known: Mapping[str, Tensor], *, source: str) -> tuple[Assumption, ...]:
    """What must be said of new weights ``sent`` beside the ``known`` ones they came from; nothing where they have 32 bits.

    A weight w rounded to the nearest number of a type is off by an error spread evenly over one step u(w) of that type, with
    the mean square u² / 12, whatever the training did. Where the known weights are of that type too, the client may have
    trained in it, and the error cannot be separated from what the weights say.
    """
    kind = next((t for t in (torch.bfloat16, torch.float16) if _exact(sent.values(), t)), None)
    if kind is None:
        return ()
    name = str(kind).removeprefix("torch.")
    if _exact((known[n] for n in sent), kind):
        return (Assumption(f"the weights came in {name}: changes below its steps are lost", "deployable"),)
    rounding = sum(float((_step(value, kind) ** 2 / 12).sum()) for value in sent.values()) ** 0.5
    away = sum(float((value - known[n]).double().square().sum()) for n, value in sent.items()) ** 0.5
    share = rounding / away if away else 0.0
    if share > NOTHING_ELSE:
        raise BadInput(
            f"{source} holds weights in {name}, and what changed in them is rounding; save them in 32 bits, or their difference"
        )
    said = f"the weights came in {name}: about {share:.0%} of the length of what changed is rounding"
    return (Assumption(said, "deployable"),)


def _exact(values: Iterable[Tensor], kind: torch.dtype) -> bool:
    """Whether all values are numbers of ``kind``, in whatever type they are held."""
    return all(bool((value == value.to(kind).to(value)).all()) for value in values)


def _step(value: Tensor, kind: torch.dtype) -> Tensor:
    """Distance from each value to the next number of ``kind``; 0 where the value is 0, which no rounding has made."""
    _, exponent = torch.frexp(value.double().abs())
    step = torch.finfo(kind).eps * torch.exp2(exponent.double() - 1)
    return torch.where(value == 0, 0.0, step)


BALANCED = 0.05
"""Largest |Σ ∂b_i| / Σ |∂b_i| of a gradient whose signs are trusted. Without noise it is zero but for rounding and weight decay."""


def refuse_the_opposite(victim: Victim, seen: Observation, *, source: str) -> None:
    """Refuses an update that only makes sense with its sign reversed: replayed, old minus new weights would lead to nothing.

    Under cross entropy ∂b_i = mean p_i − n_i / B: a class of which there is no sample has a positive entry, in every local step, so
    at most ``size`` entries are negative. Where more are, and at most ``size`` are positive, it is the other way round. Nothing can
    be said of a head without bias, of other losses, of batches that may hold every class, and of noise.
    """
    try:
        bias = head_gradient(victim, seen, "bias")
    except Inapplicable:
        return
    size, positive, negative = batch_size(seen), int((bias > 0).sum()), int((bias < 0).sum())
    balanced = abs(float(bias.sum())) <= BALANCED * float(bias.abs().sum())
    if balanced and negative > size >= positive:
        raise BadInput(
            f"{source} has the opposite sign: as it is, the scores of {negative} classes were raised by {size} sample(s); "
            "give new minus old weights, or the gradient as backward() leaves it"
        )
