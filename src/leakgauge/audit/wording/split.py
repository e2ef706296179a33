"""Where to cut the network."""

from __future__ import annotations

from leakgauge.audit.findings import Split
from leakgauge.audit.phrasing import few, number, plural
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.wording.data import NO_CLASSES, data_notes
from leakgauge.audit.wording.statement import Statement
from leakgauge.split.prompts import PromptRisk


def on_split(split: Split) -> Statement:
    asked = QUESTIONS["split"]
    if not split.finished:
        done = f"{split.scanned} of {plural(split.cuts, 'cut')} {'is' if split.scanned == 1 else 'are'} done"
        command = "audit" if split.audited else "scan"
        said = f"The scan is not finished: {done}. Resume it with leakgauge {command} --resume."
        return Statement("split", asked, "none", "Not finished", (said,), state="unfinished")
    assumed, budget = (("deployable", cloud(split)),), effort(split)
    if split.recommended is None and split.undertrained:
        said = (
            f"No cut is shown to protect. {split.candidate} withstood regression and least squares, but "
            f"{trained_too_little(split)}. Scan again with more epochs or images."
        )
        return Statement("split", asked, "partly", "Not attacked enough", (said,), assumed, budget)
    if split.recommended is None:
        return Statement("split", asked, "bad", "No cut", (_no_cut(split), *remedy(split)), assumed, budget)
    if split.only_output:
        said = (
            f"Only the model's output ({split.recommended}) keeps an FVU of {split.threshold:g} (it keeps {number(split.fvu, 2)}): the "
            f"device does all the work and sends {split.bytes} bytes."
        )
        return Statement("split", asked, "partly", "Only the output", (said, *remedy(split)), assumed, budget)
    deep = "" if split.edge_share is None else f"; the edge holds {100 * split.edge_share:.0f} % of the weights"
    by = f" ({split.by})" if split.by else ""
    named = "" if split.reidentified is None else f" and names {100 * split.reidentified:.0f} % of the originals"
    said = [
        f"At {split.recommended} or deeper. There the best attack{by} leaves {100 * (split.fvu or 0):.0f} % of the image variance "
        f"unexplained (FVU {number(split.fvu, 2)}, threshold {split.threshold:g}; 0 is a copy of the image, 1 is the mean image){named}. "
        f"It sends {split.bytes} bytes{deep}."
    ]
    if split.larger_here:
        said.append(
            f"That is {number(split.bytes_ratio, 1)} times the raw image: a deeper cut or smaller numbers (--numbers int8) would send less."
        )
    if not split.decoders:
        said.append("No decoder was trained, so this is no more than a first look.")
    tone = "partly" if split.larger_here or not split.decoders else "good"
    return Statement("split", asked, tone, "Cut found", tuple(said), assumed, budget)


def trained_too_little(split: Split) -> str:
    """Why the decoder at the candidate does not count.

    >>> trained_too_little(Split(0.25, 3, undertrained=True))
    'the decoder there did worse than regression: it was trained too little to count'
    """
    if split.learning:
        return "the decoder there was still learning: as much gain again as its last doubling of epochs brought would break the cut"
    return "the decoder there did worse than regression: it was trained too little to count"


def _no_cut(split: Split) -> str:
    of = f" of {split.cuts}" if split.cuts > 1 else ""
    best = (
        "" if split.safest_fvu is None else f" The safest is {split.safest}, which keeps {number(split.safest_fvu, 2)}"
    )
    if split.safest in split.blurred:
        best += ", but its images are re-identified"
    best = f"{best}." if best else ""
    if split.candidate is not None:
        return f"No cut{of} keeps an FVU of {split.threshold:g} and meets {split.require}.{best}"
    if (split.safest_fvu or 0) >= split.threshold and split.safest not in split.blurred:
        return f"No cut{of} is shown to protect: the attack on {split.safest} was refused.{best}"
    at = f"each of {split.cuts} cuts" if split.cuts > 1 else "the only cut"
    named = f" or re-identifies more than {100 * split.recognised:.0f} % of the images" if split.recognised < 1 else ""
    return f"No cut of this network protects by itself: at {at} an attack gets below an FVU of {split.threshold:g}{named}.{best}"


def remedy(split: Split) -> tuple[str, ...]:
    """What would protect where no cut before the output does by itself."""
    found = split.remedy
    if found is None:
        return ()
    width = (
        f"With at most {plural(found.width, 'number')} per image, no linear attack gets below the threshold."
        if found.width
        else ""
    )
    if found.noise is None:
        return tuple(filter(None, (f"Noise of up to 4 times the features' norm does not protect {found.cut}.", width)))
    named = "" if found.reidentified is None else f" and {100 * found.reidentified:.0f} % of the images re-identified"
    cost = (
        ""
        if found.accuracy is None or split.accuracy is None
        else f"; accuracy goes from {number(split.accuracy, 2)} to {number(found.accuracy, 2)}"
    )
    noise = (
        f"Gaussian noise with {found.noise:g}× the features' norm would protect {found.cut} against regression (FVU {number(found.fvu, 2)}"
        f"{named}{cost}): scan it with --cut {found.cut} --defense gaussian_noise:relative={found.noise:g}."
    )
    return tuple(filter(None, (noise, width)))


def cloud(split: Split) -> str:
    """The adversary of a scan."""
    return (
        f"a curious but honest cloud that knows the weights, sees what is sent and owns {split.auxiliary} images like the "
        f"{split.tested} attacked ones"
    )


def effort(split: Split) -> str:
    """What was spent on the attacks of a scan."""
    said = f"regression at {plural(split.scanned, 'cut')}"
    if split.computed:
        said += f", least squares at {plural(split.computed, 'cut')}"
    if split.decoded:
        here = (
            f", {split.epochs_here} of them at this cut"
            if split.epochs_here
            else ", none at this cut: a shallower one held"
        )
        total = f"{plural(split.decoder_epochs, 'epoch')} of decoders at {plural(split.decoded, 'cut')}"
        return f"{said} and {total}{here if split.recommended is not None else ''}"
    if split.decoders:
        return f"{said}; no decoder was needed"
    return f"{said} and no decoder, so a stronger attack may recover more"


def split_notes(split: Split) -> list[str]:
    """What to mind beside the recommended cut."""
    notes = [*data_notes(split.data, labels=NO_CLASSES), *split.notes]
    if split.recommended is not None and split.bytes is not None:
        sizes = {"the raw image": split.raw_bytes, "its JPEG": split.jpeg_bytes}
        known = {name: size for name, size in sizes.items() if size is not None}
        more = [f"{name} ({size:.0f})" for name, size in known.items() if split.bytes > size]
        compared = f"more than {' and '.join(more)}" if more else f"no more than {' or '.join(known)}"
        notes.append(f"{split.recommended} sends {split.bytes} bytes as {split.numbers}: {compared}.")
    for name, cuts in (("raw image", split.larger), ("JPEG", split.larger_than_jpeg)):
        if cuts and not (name == "JPEG" and cuts == split.larger):  # often the same cuts exceed both
            verb = "sends" if len(cuts) == 1 else "send"
            notes.append(f"{len(cuts)} of {plural(split.cuts, 'cut')} {verb} more than the {name}: {few(cuts)}.")
    if split.only_output:
        notes.append("The recommended cut is the model's output: the device does all the work.")
    if split.blurred:
        notes.append(
            f"Images are re-identified more often than {100 * split.recognised:.0f} % at {few(split.blurred)}, so these cuts leak although "
            "their FVU is above the threshold."
        )
    if split.weak:
        notes.append(
            f"The attack was too weak at {few(split.weak)}: one on a deeper cut did better, and counts here too."
        )
    if split.stopped:
        notes.append(
            f"Decoders at {few(split.stopped)} stopped once they had shown the leak; more epochs would show more."
        )
    return [*notes, *(f"No score of {attack} at {cut}: {reason}." for attack, cut, reason in split.refused)]


def on_prompts(best: PromptRisk | None) -> str:
    """What a scan of a language model recommends."""
    if best is None:
        return (
            "No cut is recommended: without noise prompts can be found token by token, and no noise that was tried hides half of their "
            "tokens while the cloud keeps half of its predictions."
        )
    return (
        f"Recommended: {plural(best.cut, 'block')} on the device and noise of {best.protection.noise:g} times the size of a feature's "
        f"entry. An adversary who knows all other tokens named {best.genie_rate or 0:.0%} of them; the cloud keeps {best.agreement:.0%} of "
        "its predictions."
    )
