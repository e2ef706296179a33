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

    when: Condition
    severity: Severity
    condition: str
    title: str
    why: str

    @property
    def name(self) -> str:
        return self.when.__name__


# fmt: off
RULES: tuple[Rule, ...] = (
    Rule(conditions.plain_updates_leak, "act",
         "An undefended set-up without diagnostic assumptions is feasible.",
         "Do not share plain updates from {batches}.",
         "An ordinary server reconstructed private data: {name} ({quality})."),
    Rule(conditions.plain_updates_leak_partly, "act",
         "An undefended set-up without diagnostic assumptions is partial, and none is feasible.",
         "Defend updates from {batches} before you share them.",
         "An ordinary server saw some images or some of their content: {name} ({quality})."),
    Rule(conditions.use_defense, "act",
         "The undefended attack leaks, and a defense (on the Pareto front, if one is) makes it infeasible, with an SSIM lower by at "
         f"least {LEAST_DROP['ssim']:g} (where the layout alone was seen, with a correlation lower by at least "
         f"{LEAST_DROP['layout']:g}; where the pieces alone, with a lead lower by {LEAST_DROP['ssim']:g}), for at most "
         f"{MOST_POINTS:g} points of accuracy.",
         "Consider {defense} on what you share.",
         "It made this attack infeasible within {budget} ({after} instead of {before}) and cost {cost}. {membership} The attack knew "
         "the defense. Another one may see more, so this is not a guarantee."),
    Rule(conditions.no_cheap_defense, "act",
         f"The undefended attack on the update of one client leaks, and no defense makes it infeasible for at most {MOST_POINTS:g} "
         "points of accuracy.",
         "Plan for secure aggregation, or for training with DP-SGD (Opacus).",
         "{count} tried: {best}. To see what an attacker gets under aggregation, re-run with --channel aggregate:clients=4; for "
         "other settings of DP-SGD, with --channel dpsgd:clip=…,noise=…."),
    Rule(conditions.more_clients, "act",
         f"The undefended attack on a sum over clients leaks, and no defense makes it infeasible for at most {MOST_POINTS:g} points "
         "of accuracy.",
         "Add up more than {clients} clients, or plan for training with DP-SGD (Opacus).",
         "{count} tried on the sum: {best}. To try larger sums, re-run with --channel aggregate:clients={more} and a batch of at "
         "least {more}; to try DP-SGD, with --channel dpsgd:clip=…,noise=…."),
    Rule(conditions.defense_did_not_hold, "act",
         "A set-up with a defense is feasible or partial.",
         "Do not rely on {defense} at this strength.",
         "{seen} in spite of it: {name} ({quality})."),
    Rule(conditions.malicious_server_leaks, "act",
         "A set-up with a malicious server is feasible or partial.",
         "Check the model the server sends before you train on it: run leakgauge inspect and look at its layers.",
         "A server that sent a different model than agreed reconstructed private images: {name} ({quality}). Secure aggregation does "
         "not stop that; DP-SGD with an accountant bounds what one sample can add."),
    Rule(conditions.no_safe_cut, "act",
         "The scan ended, and no cut meets the threshold and the requirements.",
         "Do not split this network as it is; defend the features and scan again.",
         "{none} {wanted}; {best}.{remedy}"),
    Rule(conditions.keep_it_whole, "act",
         "The only cut that the scan recommends is the model's output.",
         "Keep the whole network on the device, and send its output alone.",
         "Of {cuts} cuts only the last, {cut}, keeps enough (FVU {fvu}, threshold {threshold}) after {budget}. It sends {bytes} "
         "bytes.{remedy}"),
    Rule(conditions.cut_here, "act",
         "The scan recommends a cut before the model's output.",
         "If you split the network, cut at {cut} or deeper.",
         "There the best attack leaves {left} of the image variance unexplained (FVU {fvu}, threshold {threshold}) after {budget}. "
         "It sends {bytes} bytes as {numbers}; {more}."),
    Rule(conditions.keep_buffers, "act",
         "Sharing the running statistics makes an undefended set-up leak more.",
         "Do not send BatchNorm statistics with the update.",
         "With them the verdict is {leaking} ({leaking_quality}), without them {holding} ({holding_quality})."),
    Rule(conditions.gradients_reveal, "act",
         "The monitor's alarm fired, and its controls are clean.",
         "Do not show single gradients of this training to anyone who must not know the batch.",
         "The alarm fired at step {alarm} of {steps} (view: {view}; false alarms in at most {alpha} of trainings). The leakage "
         "estimate peaked at step {at} with {peak} nats; the most it can show is {ceiling}."),
    Rule(conditions.members_recognised, "act",
         f"The lower bound of the white-box AUC is at least {ALMOST_ALL_MEMBERS:g}.",
         "Do not promise that membership in a batch stays secret.",
         "An attacker with the weights and a list of candidate images can tell which were in the batch: AUC {auc} at step {step}. "
         "Clipping with noise, as in DP-SGD, lowers it."),
    Rule(conditions.labels_read, "act",
         f"At least {100 * conditions.LABELS_READ:g} % of the labels were read from undefended updates without diagnostic "
         f"assumptions, and guessing does as well in at most {100 * conditions.LUCK:g} % of cases.",
         "Treat the labels of a batch of {batch} as known to the server.",
         "{right} of {count} labels ({classes} classes) were read from plain updates alone."),
    Rule(conditions.not_enough_effort, "check",
         "A set-up is inconclusive: nothing was reconstructed, after fewer steps than a negative needs.",
         "Draw no conclusion from {count} yet; give the attack more time (--budget) or steps.",
         "Nothing was reconstructed after {steps}. Below {enough} steps that is no evidence; the attack's own number is {usual}."),
    Rule(conditions.not_evidence, "check",
         "A set-up is inconclusive although the attack took enough steps: its search or its control failed, or nobody looked.",
         "Draw no conclusion from {count}: not evidence. Spend more steps or restarts (--budget), or use a stronger attack.",
         "Nothing was reconstructed, but {reasons}. A stronger attack knows more: --reveal auxiliary:64 gives it similar images."),
    Rule(conditions.controls_failed, "check",
         f"The lower bound of the null or decoy control is above {CONTROL_LIMIT:g} nats, or the critic under tenfold noise reads more "
         f"than {NOISE_LIMIT:g}.",
         "Do not trust the monitor's curve and alarm of this run.",
         "A control that must be about 0 is not: {controls}. Shuffle the loader and watch again with another seed."),
    Rule(conditions.larger_batches, "check",
         "A smaller batch leaks more than a larger one in an otherwise equal undefended set-up, and nothing was reconstructed from "
         "that size or a larger one.",
         "Do not use batches smaller than {batch}.",
         "From a batch of {smaller} the verdict is {leaking} ({leaking_quality}), from {batch} it is {holding} ({holding_quality}). "
         "A larger batch makes the attack harder but is not a guarantee."),
    Rule(conditions.keep_train_mode, "check",
         "Eval mode leaks more than train mode in an otherwise equal undefended set-up.",
         "Make sure clients compute updates in train mode.",
         "In eval mode the verdict is {leaking} ({leaking_quality}), in train mode {holding} ({holding_quality})."),
    Rule(conditions.more_local_steps, "check",
         "Fewer local steps leak more than several in an otherwise equal undefended set-up.",
         "Share after {steps} local steps, not after each one.",
         "The verdict drops from {leaking} ({leaking_quality}) to {holding} ({holding_quality}). This is not a guarantee."),
    Rule(conditions.only_upper_bound, "check",
         "Set-ups leak with diagnostic assumptions, and no undefended one leaks without.",
         "Make sure the server cannot get this help: {help}.",
         "With it {name} leaks ({quality}); this is an upper bound. Without it no set-up leaked within the budget."),
    Rule(conditions.only_diagnostic_run, "check",
         "Every undefended set-up that was judged rests on diagnostic assumptions.",
         "Attack a set-up without diagnostic help too.",
         "What was judged is an upper bound: {count}, with this help: {help}."),
    Rule(conditions.properties_told, "check",
         "A probe of updates tells a property of the batch better than chance, permuted labels and labels alone.",
         "Assume that a server learns how your samples are distributed.",
         "{said} Noise for single records does not bound this: what is protected is one record, not a share of all of them."),
    Rule(conditions.early_steps_leak_most, "check",
         f"The leakage estimate peaked in the first {100 * EARLY:g} % of the steps, its interval is above the one at the end, and the "
         "controls are clean.",
         "Protect the first steps of a training most carefully.",
         "The leakage estimate was {peak} nats at step {step} of {steps} and {last} at the end. The critic loses track of weights "
         "that move, so later steps are not proven safer: keep the protection there too."),
    Rule(conditions.noise_is_not_dp, "check",
         "Noise without an accountant was used on updates or features, or is a defense that held.",
         "Do not call {defense} differential privacy.",
         "Nothing bounds what a single person adds, and nothing is accounted for. For an ε use DP-SGD with an accountant (Opacus)."),
    Rule(conditions.nothing_to_defend, "check",
         "Defenses were compared by an attack that fails without any.",
         "Do not read the comparison of defenses as protection.",
         "The attack fails without a defense too ({before}), so {count} had nothing to stop. Compare them where the attack succeeds."),
    Rule(conditions.decoders_too, "check",
         "A cut is recommended without a decoder, or the decoder at the cut in question did worse than regression.",
         "Scan again with decoders, and train them longer, before you rely on {cut}.",
         "{why}"),
    Rule(conditions.longer_monitoring, "check",
         f"Fewer than {SETTLED} steps were scored by the monitor.",
         "Monitor a longer training.",
         "{scored} in {steps} training steps: too few for the critic to say anything."),
    Rule(conditions.repair_errors, "check",
         "A set-up or a defense broke, or a question failed.",
         "Fix what broke, then run the audit again.",
         "{count} gave no result, which says nothing for or against safety. First: {name} ({reason})."),
    Rule(conditions.resume, "check",
         "The run was stopped before it was done: set-ups, trials or whole questions have no record, the scan has no conclusion yet, "
         "or the monitored training did not finish.",
         "Finish the interrupted run ({how}).",
         "The results so far are incomplete: {what}."),
    Rule(conditions.more_steps, "check",
         "A set-up that is not feasible was attacked with fewer steps than the attack's own default.",
         "Attack again with at least {usual} steps before you rely on a negative verdict.",
         "{count} ended short of feasible after {steps}; the default of {attack} is {usual}."),
    Rule(conditions.prior_too, "check",
         "An undefended set-up held against an attack without a learned prior, and no attack with a generative prior was run.",
         "Attack again with a generative prior if the server may have similar images.",
         "{count} held against {attack}, which only assumes that images are smooth. A generator trained on public images finds more "
         "on some networks: --attack generative_prior --reveal auxiliary:900."),
    Rule(conditions.noise_for_a_bound, "know",
         "A plain set-up without diagnostic assumptions leaks, or the noise of a set-up lets some attack succeed more than twice as "
         f"often as guessing among {conditions.GUESSES} candidates.",
         "For a bound that holds against every attack, train with DP-SGD and a noise multiplier of at least {noise}.",
         "Then no attack on one update exceeds {bound} for an image that is one of {candidates} equally likely ones (guessing: "
         "{guess}).{now} A training of {steps} steps that each sample {rate} of the data needs {sampled}; "
         "leakgauge.measures.rero.noise_for computes it for yours."),
    Rule(conditions.more_images, "know",
         f"No undefended set-up leaks, and fewer than {conditions.FEWEST_IMAGES} images were attacked.",
         "Attack more images.",
         "None of {images} was reconstructed. With 95 % confidence, up to {allowed} of all images could still be."),
    Rule(conditions.no_proof, "know",
         "Updates were attacked, and in no set-up does anything leak.",
         "Do not write that updates are safe; strengthen the attack first (steps, restarts, other attacks, more knowledge).",
         "{count} held against these attacks in {seconds}. A negative result is not proof."),
    Rule(conditions.not_answered, "know",
         "A question was not asked, was not reached, or was refused.",
         "Draw no conclusions about what was not measured: {questions}.",
         "This run does not say whether anything leaks there."),
)
# fmt: on

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
