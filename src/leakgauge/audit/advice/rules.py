"""What to do, as data: each rule has a condition, a title that says what to do and a sentence why, with the measured numbers.

The order is that of importance: what to change first, then what to check, then what to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leakgauge.audit.advice import conditions
from leakgauge.audit.advice.conditions import Condition
from leakgauge.audit.findings import (
    ALMOST_ALL_MEMBERS,
    CONTROL_LIMIT,
    EARLY,
    LEAST_DROP,
    MOST_POINTS,
    NOISE_LIMIT,
    SETTLED,
)

Severity = Literal["act", "check", "know"]


@dataclass(frozen=True)
class Rule:
    """``condition`` is ``when`` in words. ``title`` and ``why`` are filled with what the condition found."""

    name: str
    severity: Severity
    condition: str
    when: Condition
    title: str
    why: str


RULES: tuple[Rule, ...] = (
    Rule(
        name="plain_updates_leak",
        severity="act",
        condition="An undefended set-up without diagnostic assumptions is feasible.",
        when=conditions.plain_updates_leak,
        title="Do not share plain updates from {batches}.",
        why="An ordinary server reconstructed private data: {name} ({quality}).",
    ),
    Rule(
        name="plain_updates_leak_partly",
        severity="act",
        condition="An undefended set-up without diagnostic assumptions is partial, and none is feasible.",
        when=conditions.plain_updates_leak_partly,
        title="Defend updates from {batches} before you share them.",
        why="An ordinary server saw some images or some of their content: {name} ({quality}).",
    ),
    Rule(
        name="use_defense",
        severity="act",
        condition="The undefended attack leaks, and a defense (on the Pareto front, if one is) makes it infeasible, with an SSIM lower by "
        f"at least {LEAST_DROP['ssim']:g} (where the layout alone was seen, with a correlation lower by at least "
        f"{LEAST_DROP['layout']:g}; where the pieces alone, with a lead lower by {LEAST_DROP['ssim']:g}), for at most "
        f"{MOST_POINTS:g} points of accuracy.",
        when=conditions.use_defense,
        title="Consider {defense} on what you share.",
        why="It made this attack infeasible within {budget} ({after} instead of {before}) and cost {cost}. {membership} "
        "The attack knew the defense. Another one may see more, so this is not a guarantee.",
    ),
    Rule(
        name="no_cheap_defense",
        severity="act",
        condition="The undefended attack on the update of one client leaks, and no defense makes it infeasible for at most "
        f"{MOST_POINTS:g} points of accuracy.",
        when=conditions.no_cheap_defense,
        title="Plan for secure aggregation, or for training with DP-SGD (Opacus).",
        why="{count} tried: {best}. To see what an attacker gets under aggregation, re-run with --channel aggregate:clients=4; for other "
        "settings of DP-SGD, with --channel dpsgd:clip=…,noise=….",
    ),
    Rule(
        name="more_clients",
        severity="act",
        condition="The undefended attack on a sum over clients leaks, and no defense makes it infeasible for at most "
        f"{MOST_POINTS:g} points of accuracy.",
        when=conditions.more_clients,
        title="Add up more than {clients} clients, or plan for training with DP-SGD (Opacus).",
        why="{count} tried on the sum: {best}. To try larger sums, re-run with --channel aggregate:clients={more} and a batch of at least "
        "{more}; to try DP-SGD, with --channel dpsgd:clip=…,noise=….",
    ),
    Rule(
        name="defense_did_not_hold",
        severity="act",
        condition="A set-up with a defense is feasible or partial.",
        when=conditions.defense_did_not_hold,
        title="Do not rely on {defense} at this strength.",
        why="{seen} in spite of it: {name} ({quality}).",
    ),
    Rule(
        name="malicious_server_leaks",
        severity="act",
        condition="A set-up with a malicious server is feasible or partial.",
        when=conditions.malicious_server_leaks,
        title="Check the model the server sends before you train on it: run leakgauge inspect and look at its layers.",
        why="A server that sent a different model than agreed reconstructed private images: {name} ({quality}). Secure aggregation does "
        "not stop that; DP-SGD with an accountant bounds what one sample can add.",
    ),
    Rule(
        name="no_safe_cut",
        severity="act",
        condition="The scan ended, and no cut meets the threshold and the requirements.",
        when=conditions.no_safe_cut,
        title="Do not split this network as it is; defend the features and scan again.",
        why="{none} {wanted}; {best}.{remedy}",
    ),
    Rule(
        name="keep_it_whole",
        severity="act",
        condition="The only cut that the scan recommends is the model's output.",
        when=conditions.keep_it_whole,
        title="Keep the whole network on the device, and send its output alone.",
        why="Of {cuts} cuts only the last, {cut}, keeps enough (FVU {fvu}, threshold {threshold}) after {budget}. "
        "It sends {bytes} bytes.{remedy}",
    ),
    Rule(
        name="cut_here",
        severity="act",
        condition="The scan recommends a cut before the model's output.",
        when=conditions.cut_here,
        title="If you split the network, cut at {cut} or deeper.",
        why="There the best attack leaves {left} of the image variance unexplained (FVU {fvu}, threshold {threshold}) after {budget}. "
        "It sends {bytes} bytes as {numbers}; {more}.",
    ),
    Rule(
        name="keep_buffers",
        severity="act",
        condition="Sharing the running statistics makes an undefended set-up leak more.",
        when=conditions.keep_buffers,
        title="Do not send BatchNorm statistics with the update.",
        why="With them the verdict is {leaking} ({leaking_quality}), without them {holding} ({holding_quality}).",
    ),
    Rule(
        name="gradients_reveal",
        severity="act",
        condition="The monitor's alarm fired, and its controls are clean.",
        when=conditions.gradients_reveal,
        title="Do not show single gradients of this training to anyone who must not know the batch.",
        why="The alarm fired at step {alarm} of {steps} (view: {view}; false alarms in at most {alpha} of trainings). The leakage estimate "
        "peaked at step {at} with {peak} nats; the most it can show is {ceiling}.",
    ),
    Rule(
        name="members_recognised",
        severity="act",
        condition=f"The lower bound of the white-box AUC is at least {ALMOST_ALL_MEMBERS:g}.",
        when=conditions.members_recognised,
        title="Do not promise that membership in a batch stays secret.",
        why="An attacker with the weights and a list of candidate images can tell which were in the batch: AUC {auc} at step {step}. "
        "Clipping with noise, as in DP-SGD, lowers it.",
    ),
    Rule(
        name="labels_read",
        severity="act",
        condition=f"At least {100 * conditions.LABELS_READ:g} % of the labels were read from undefended updates without diagnostic "
        f"assumptions, and guessing does as well in at most {100 * conditions.LUCK:g} % of cases.",
        when=conditions.labels_read,
        title="Treat the labels of a batch of {batch} as known to the server.",
        why="{right} of {count} labels ({classes} classes) were read from plain updates alone.",
    ),
    Rule(
        name="not_enough_effort",
        severity="check",
        condition="A set-up is inconclusive: nothing was reconstructed, after fewer steps than a negative needs.",
        when=conditions.not_enough_effort,
        title="Draw no conclusion from {count} yet; give the attack more time (--budget) or steps.",
        why="Nothing was reconstructed after {steps}. Below {enough} steps that is no evidence; the attack's own number is {usual}.",
    ),
    Rule(
        name="not_evidence",
        severity="check",
        condition="A set-up is inconclusive although the attack took enough steps: its search or its control failed, or nobody looked.",
        when=conditions.not_evidence,
        title="Draw no conclusion from {count}: not evidence. Spend more steps or restarts (--budget), or use a stronger attack.",
        why="Nothing was reconstructed, but {reasons}. A stronger attack knows more: --reveal auxiliary:64 gives it similar images.",
    ),
    Rule(
        name="controls_failed",
        severity="check",
        condition=f"The lower bound of the null or decoy control is above {CONTROL_LIMIT:g} nats, or the critic under tenfold "
        f"noise reads more than {NOISE_LIMIT:g}.",
        when=conditions.controls_failed,
        title="Do not trust the monitor's curve and alarm of this run.",
        why="A control that must be about 0 is not: {controls}. Shuffle the loader and watch again with another seed.",
    ),
    Rule(
        name="larger_batches",
        severity="check",
        condition="A smaller batch leaks more than a larger one in an otherwise equal undefended set-up, and nothing was "
        "reconstructed from that size or a larger one.",
        when=conditions.larger_batches,
        title="Do not use batches smaller than {batch}.",
        why="From a batch of {smaller} the verdict is {leaking} ({leaking_quality}), from {batch} it is {holding} "
        "({holding_quality}). A larger batch makes the attack harder but is not a guarantee.",
    ),
    Rule(
        name="keep_train_mode",
        severity="check",
        condition="Eval mode leaks more than train mode in an otherwise equal undefended set-up.",
        when=conditions.keep_train_mode,
        title="Make sure clients compute updates in train mode.",
        why="In eval mode the verdict is {leaking} ({leaking_quality}), in train mode {holding} ({holding_quality}).",
    ),
    Rule(
        name="more_local_steps",
        severity="check",
        condition="Fewer local steps leak more than several in an otherwise equal undefended set-up.",
        when=conditions.more_local_steps,
        title="Share after {steps} local steps, not after each one.",
        why="The verdict drops from {leaking} ({leaking_quality}) to {holding} ({holding_quality}). This is not a guarantee.",
    ),
    Rule(
        name="only_upper_bound",
        severity="check",
        condition="Set-ups leak with diagnostic assumptions, and no undefended one leaks without.",
        when=conditions.only_upper_bound,
        title="Make sure the server cannot get this help: {help}.",
        why="With it {name} leaks ({quality}); this is an upper bound. Without it no set-up leaked within the budget.",
    ),
    Rule(
        name="only_diagnostic_run",
        severity="check",
        condition="Every undefended set-up that was judged rests on diagnostic assumptions.",
        when=conditions.only_diagnostic_run,
        title="Attack a set-up without diagnostic help too.",
        why="What was judged is an upper bound: {count}, with this help: {help}.",
    ),
    Rule(
        name="properties_told",
        severity="check",
        condition="A probe of updates tells a property of the batch better than chance, permuted labels and labels alone.",
        when=conditions.properties_told,
        title="Assume that a server learns how your samples are distributed.",
        why="{said} Noise for single records does not bound this: what is protected is one record, not a share of all of them.",
    ),
    Rule(
        name="early_steps_leak_most",
        severity="check",
        condition=f"The leakage estimate peaked in the first {100 * EARLY:g} % of the steps, its interval is above the one at the end, "
        "and the controls are clean.",
        when=conditions.early_steps_leak_most,
        title="Protect the first steps of a training most carefully.",
        why="The leakage estimate was {peak} nats at step {step} of {steps} and {last} at the end. The critic loses track of weights that "
        "move, so later steps are not proven safer: keep the protection there too.",
    ),
    Rule(
        name="noise_is_not_dp",
        severity="check",
        condition="Noise without an accountant was used on updates or features, or is a defense that held.",
        when=conditions.noise_is_not_dp,
        title="Do not call {defense} differential privacy.",
        why="Nothing bounds what a single person adds, and nothing is accounted for. For an ε use DP-SGD with an accountant (Opacus).",
    ),
    Rule(
        name="nothing_to_defend",
        severity="check",
        condition="Defenses were compared by an attack that fails without any.",
        when=conditions.nothing_to_defend,
        title="Do not read the comparison of defenses as protection.",
        why="The attack fails without a defense too ({before}), so {count} had nothing to stop. Compare them where the attack succeeds.",
    ),
    Rule(
        name="decoders_too",
        severity="check",
        condition="A cut is recommended without a decoder, or the decoder at the cut in question did worse than regression.",
        when=conditions.decoders_too,
        title="Scan again with decoders, and train them longer, before you rely on {cut}.",
        why="{why}",
    ),
    Rule(
        name="longer_monitoring",
        severity="check",
        condition=f"Fewer than {SETTLED} steps were scored by the monitor.",
        when=conditions.longer_monitoring,
        title="Monitor a longer training.",
        why="{scored} in {steps} training steps: too few for the critic to say anything.",
    ),
    Rule(
        name="repair_errors",
        severity="check",
        condition="A set-up or a defense broke, or a question failed.",
        when=conditions.repair_errors,
        title="Fix what broke, then run the audit again.",
        why="{count} gave no result, which says nothing for or against safety. First: {name} ({reason}).",
    ),
    Rule(
        name="resume",
        severity="check",
        condition="The run was stopped before it was done: set-ups, trials or whole questions have no record, the scan has no conclusion "
        "yet, or the monitored training did not finish.",
        when=conditions.resume,
        title="Finish the interrupted run ({how}).",
        why="The results so far are incomplete: {what}.",
    ),
    Rule(
        name="more_steps",
        severity="check",
        condition="A set-up that is not feasible was attacked with fewer steps than the attack's own default.",
        when=conditions.more_steps,
        title="Attack again with at least {usual} steps before you rely on a negative verdict.",
        why="{count} ended short of feasible after {steps}; the default of {attack} is {usual}.",
    ),
    Rule(
        name="prior_too",
        severity="check",
        condition="An undefended set-up held against an attack without a learned prior, and no attack with a generative prior was run.",
        when=conditions.prior_too,
        title="Attack again with a generative prior if the server may have similar images.",
        why="{count} held against {attack}, which only assumes that images are smooth. A generator trained on public images finds more on "
        "some networks: --attack generative_prior --reveal auxiliary:900.",
    ),
    Rule(
        name="noise_for_a_bound",
        severity="know",
        condition="A plain set-up without diagnostic assumptions leaks, or the noise of a set-up lets some attack succeed more than twice "
        f"as often as guessing among {conditions.GUESSES} candidates.",
        when=conditions.noise_for_a_bound,
        title="For a bound that holds against every attack, train with DP-SGD and a noise multiplier of at least {noise}.",
        why="Then no attack on one update exceeds {bound} for an image that is one of {candidates} equally likely ones (guessing: {guess})."
        "{now} A training of {steps} steps that each sample {rate} of the data needs {sampled}; leakgauge.measures.rero.noise_for computes "
        "it for yours.",
    ),
    Rule(
        name="more_images",
        severity="know",
        condition=f"No undefended set-up leaks, and fewer than {conditions.FEWEST_IMAGES} images were attacked.",
        when=conditions.more_images,
        title="Attack more images.",
        why="None of {images} was reconstructed. With 95 % confidence, up to {allowed} of all images could still be.",
    ),
    Rule(
        name="no_proof",
        severity="know",
        condition="Updates were attacked, and in no set-up does anything leak.",
        when=conditions.no_proof,
        title="Do not write that updates are safe; strengthen the attack first (steps, restarts, other attacks, more knowledge).",
        why="{count} held against these attacks in {seconds}. A negative result is not proof.",
    ),
    Rule(
        name="not_answered",
        severity="know",
        condition="A question was not asked, was not reached, or was refused.",
        when=conditions.not_answered,
        title="Draw no conclusions about what was not measured: {questions}.",
        why="This run does not say whether anything leaks there.",
    ),
)

EXCLUSIVE: tuple[tuple[str, str, str], ...] = (
    ("plain_updates_leak", "plain_updates_leak_partly", "the worst verdict speaks"),
    ("plain_updates_leak", "only_upper_bound", "what leaks without help is no upper bound"),
    ("plain_updates_leak", "only_diagnostic_run", "a set-up without help was judged"),
    ("plain_updates_leak", "no_proof", "something leaks"),
    ("plain_updates_leak_partly", "only_upper_bound", "what leaks without help is no upper bound"),
    ("plain_updates_leak_partly", "only_diagnostic_run", "a set-up without help was judged"),
    ("plain_updates_leak_partly", "no_proof", "something leaks"),
    ("only_upper_bound", "only_diagnostic_run", "one says that nothing leaks without help, the other that nobody looked"),
    ("only_upper_bound", "no_proof", "something leaks"),
    ("plain_updates_leak", "more_images", "one reconstruction is a proof at any number of images"),
    ("not_enough_effort", "more_images", "no rate follows from a search that was too short"),
    ("not_enough_effort", "no_proof", "what was not tried long enough has not held"),
    ("not_evidence", "more_images", "no rate follows from a search that failed"),
    ("not_evidence", "no_proof", "what a failed search did not find has not held"),
    ("use_defense", "no_cheap_defense", "a cheap defense exists or it does not"),
    ("use_defense", "more_clients", "a cheap defense exists or it does not"),
    ("no_cheap_defense", "more_clients", "one speaks of a client's own update, the other of a sum"),
    ("more_clients", "nothing_to_defend", "nothing leaks that a defense would have to stop"),
    ("use_defense", "nothing_to_defend", "a defense earns something only where the attack succeeds"),
    ("no_cheap_defense", "nothing_to_defend", "nothing leaks that a defense would have to stop"),
    ("use_defense", "no_proof", "the attack succeeds without the defense"),
    ("cut_here", "keep_it_whole", "the output is no split"),
    ("keep_it_whole", "no_safe_cut", "a cut is recommended or it is not"),
    ("cut_here", "no_safe_cut", "a cut is recommended or it is not"),
    ("decoders_too", "no_safe_cut", "there is no cut to rely on"),
    ("controls_failed", "gradients_reveal", "an alarm counts only where the controls are clean"),
    ("controls_failed", "early_steps_leak_most", "a curve counts only where the controls are clean"),
)  # fmt: skip
"""Rules that would contradict each other, and why they never apply together."""
