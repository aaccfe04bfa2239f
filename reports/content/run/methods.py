"""The methods text: what was done in this run, with versions, settings and citations.

One function per stage gives its sentences from the settings and the tables; stages that a run did not reach are
not described. The text may be used freely (CC0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.balance import STRATUM
from heatlas.pipeline.explaining.own_regions import OWN_REGIONS_TABLE
from heatlas.pipeline.models.families.foreign import ForeignConfig
from heatlas.pipeline.models.families.registry import family_of, is_foreign, is_solved
from heatlas.pipeline.models.foreign.feeding import SCALED
from heatlas.pipeline.models.inputs import PERCENTILES, configured_input
from heatlas.pipeline.regions.packed_atlas import RELEVANCE_CHANNELS_TABLE
from heatlas.pipeline.registration.ants_transform import AFFINE_TORCH
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, all_images
from heatlas.pipeline.run.layout.scan_files import GUIDED_MAP
from heatlas.pipeline.statistics.associations.volume_association import WITHIN
from heatlas.pipeline.training.objectives.records import kind_of
from heatlas.reports.questions.analyses import ANALYSES
from heatlas.reports.questions.comparisons import PRIMARY
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, listing, number, percent
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import variable_in_words

WORDS = Words(__file__)


def recorded_source(run: RunRecord, name: str) -> dict[str, Any]:
    source = run.provenance.get("sources", {}).get(name, {})
    return dict(source) if isinstance(source, dict) else {}


def version_of(run: RunRecord, package: str) -> str:
    version = run.provenance.get("packages", {}).get(package)
    return f" {version}" if version and version != "absent" else ""


def _data(run: RunRecord) -> str:
    if not run.has("scans"):
        return ""
    scans, cohort = run.tables["scans"], run.config.cohort
    kept = scans[scans["kept"].astype(bool)]
    labelled = kept[kept["label"].notna()]
    layout = run.provenance.get("sources", {}).get("input_layout")
    kinds = {
        "adni": "an ADNI download", "bids": "a BIDS dataset [@bids]", "oasis": "an OASIS download",
        "caps": "a CAPS dataset of Clinica", "freesurfer": "a folder of FreeSurfer subjects",
        "table": "a folder of images with a table",
    }  # fmt: skip
    kind = kinds.get(str(layout), "the input folder")
    kind = (
        "a synthetic demo cohort with planted atrophy, in the layout of an ADNI download" if run.is_synthetic else kind
    )
    rule = f" (scans were included if {cohort.include})" if cohort.include else ""
    text = WORDS.say(
        "data",
        count=count(len(scans), cohort.kind.scan),
        everyone=scans["participant_id"].nunique(),
        kind=kind,
        kept=len(kept),
        rule=rule,
        task=_task(run),
        scans=len(labelled),
        people=labelled["participant_id"].nunique(),
    )
    if cohort.split == "folds":
        strata = "quantile" if cohort.target else "class"
        text += f"Participants were divided into {cohort.folds} folds, stratified by {strata}"
        if balanced := _balanced(run):
            text += f" and balanced for {balanced}"
    else:
        text += WORDS.say("single_split", cohort=cohort)
    text += f"; no participant was in two parts (seed {run.config.seed})."
    if cohort.shuffle_labels:
        text += " As a control, labels were shuffled between participants."
    return text


def _balanced(run: RunRecord) -> str:
    """Variables other than the class that the folds were made alike in."""
    if not run.has("split_balance"):
        return ""
    table = run.tables["split_balance"]
    table = table[table["balanced"].astype(bool) & (table["variable"] != STRATUM)]
    return listing([variable_in_words(name) for name in table["variable"]])


def _task(run: RunRecord) -> str:
    task = run.task
    if task.classes:
        return f"The contrast was {task.column}, {' against '.join(reversed(task.classes))}"
    return f"The networks predicted {task.column}"


_LOSSES = {
    "cross-entropy": "cross-entropy",
    "binary-cross-entropy": "binary cross-entropy of each class",
    "off-target": "binary cross-entropy of each class with off-targets [@bcos_vit]",
}


def loss_in_words(run: RunRecord) -> str:
    """The loss of a training with classes."""
    asked = run.config.training.loss
    return _LOSSES[family_of(run.config.model).loss if asked == "usual" else asked]


def _loss(run: RunRecord) -> str:
    """The loss of the training."""
    training = run.config.training
    if run.task.classes:
        return (
            loss_in_words(run)
            + (" weighted by class" if training.balance_classes else "")
            + _penalty(training.weight_penalty)
        )
    name = "squared error" if training.regression_loss == "mse" else "Huber's loss"
    return f"{name} of the target in standard deviations of the training part"


def _registration(run: RunRecord) -> str:
    if not run.has("registration"):
        return ""
    settings, parts = run.config.registration, []
    sources = set(run.tables["registration"].get("brain_extraction", [])) - {None}
    if "deepbet" in sources:
        parts.append(f"Brains were extracted with deepbet{version_of(run, 'deepbet')} [@deepbet].")
    if "stripped" in sources:
        parts.append("Scans without skull were used as they were.")
    if "given" in sources:
        parts.append("Brain masks that came with scans were used.")
    if "synthstrip" in sources:
        parts.append("Brains were extracted with SynthStrip [@synthstrip].")
    kind, *further = run.config.cohort.kinds
    registered = run.tables["registration"]
    through = "t1w_mutual_information" in registered and bool(registered["t1w_mutual_information"].notna().any())
    if "template" in sources:
        parts.append("Images in template space that were not stripped were cut by the brain mask of the template.")
    if settings.bias_correction and (any(one.uneven for one in (kind, *further)) or through):
        parts.append("Intensity inhomogeneity was corrected with N4 [@n4].")
    of_template = f"the template {run.layout.space}"
    if run.layout.space == DEFAULT_TEMPLATE:
        of_template = "the ICBM152 2009c nonlinear asymmetric template [@template]"
    if through:
        carried = listing([one.scan for one in (kind, *further) if one.through_t1w])
        parts.append(WORDS.say("through_t1w", carried=carried))
    without_ants = run.provenance.get("packages", {}).get("antspyx") == "absent"
    by_torch = settings.affine_only and (without_ants or settings.transform == AFFINE_TORCH)
    parts.append(
        WORDS.say(
            "registered_by_torch" if by_torch else "registered",
            which="T1-weighted scans" if through else "Scans",
            version=version_of(run, "torch" if by_torch else "antspyx"),
            settings=settings,
            of_template=of_template,
        )
    )
    doubtful = int(run.tables["registration"]["flags"].notna().sum())
    if doubtful:
        parts.append(WORDS.say("flagged", doubtful=doubtful))
    return " ".join(parts)


def seen_in_words(run: RunRecord) -> str:
    """What the network saw of each image."""
    model, (low, high) = run.config.model, PERCENTILES
    if isinstance(model, ForeignConfig) and model.scaling:
        sizes = configured_input(run.config).grid.voxel_sizes_mm
        return WORDS.say(
            "seen_by_contract", shape=" × ".join(map(str, model.grid)), size=" × ".join(f"{one:.3g}" for one in sizes),
            scaled=SCALED.get(model.scaling, "scaled by two fixed intensities"),
        )  # fmt: skip
    return WORDS.say(
        "seen",
        field="a box around the brain" if model.field_of_view == "brain" else "the whole template grid",
        cut_off=f", cut off at percentiles {low:g} and {high:g}" if model.intensities == "percentiles" else "",
    )


def _training(run: RunRecord) -> str:
    if not run.models:
        return ""
    model, training = run.config.model, run.config.training
    text = WORDS.say(
        "training",
        described=family_of(model).described(model),
        seen=seen_in_words(run),
        channels=_channels(run),
        fitting=_fitting(run),
    )
    if training.participants < 1:
        text += f" Of the training participants of each class {percent(training.participants, 0)} were used."
    text += kind_of(run.config).sentence(run.config)
    if training.repeats > 1:
        text += f" Each fold was trained {training.repeats} times with other seeds; maps are those of the first."
    return text


def _channels(run: RunRecord) -> str:
    """What entered as channels, where several images did."""
    kinds = run.config.cohort.kinds
    if len(kinds) == 1:
        return ""
    return WORDS.say("channels", all_images=all_images(kinds), RELEVANCE_CHANNELS_TABLE=RELEVANCE_CHANNELS_TABLE)


def _fitting(run: RunRecord) -> str:
    """How weights were found."""
    training = run.config.training
    if training.networks_of and not is_foreign(run.config.model):
        others = len({one for model in run.models.values() for one in model.get("participants", {}).get("train", ())})
        if run.without_labels:
            return WORDS.say("applied", others=others)
        return WORDS.say("all_folds", others=others)
    if run.is_given:
        known = "may" if run.may_have_seen else "did not"
        return f" Its training was not part of this study; the people of this study {known} take part in it."
    if is_solved(run.config.model):
        weighted = ", weighted by class" if training.balance_classes and run.task.classes else ""
        return WORDS.say("solved", weighted=weighted, version=version_of(run, "scikit-learn"))
    text = WORDS.say(
        "adam",
        training=training,
        schedule=_SCHEDULES[training.learning_rate_schedule],
        clipping=_clipping(training.clip_gradients),
        loss=_loss(run),
    )
    if training.from_run:
        before = next(iter(run.models.values())).get("backbone_participants", ())
        text += f", from the weights of a network that had been trained with {count(len(before), 'participant')}"
    best = "highest validation balanced accuracy" if run.task.classes else "lowest validation mean absolute error"
    text += WORDS.say("epochs", training=training, version=version_of(run, "torch"), best=best)
    if run.task.classes:
        text += " With few validation participants many epochs have the same accuracy, and then the loss decides."
    if training.augmentation.is_on:
        text += " Images were augmented further with MONAI (settings in config.toml)."
    return text


def _penalty(strength: float) -> str:
    return (
        f" plus {strength:g} times the mean absolute weight of the true and one wrong class [@coda]" if strength else ""
    )


def _clipping(share: float) -> str:
    return f", gradients of each unit clipped at {share:g} of its weights [@clipping]" if share else ""


_SCHEDULES = {"constant": "", "cosine": " falling to 0 over all epochs along a cosine"}


_STARTS = {
    "logit": "logit",
    "probability": "softmax probability",
    "evidence": "evidence (logit less the mean of all others)",
}

_NORMS = {
    "auto": "folded into the convolutions if all of it follows one, and passed through unchanged otherwise",
    "fold": "folded into the convolutions",
    "identity": "passed through unchanged",
}


def _attribution(run: RunRecord) -> str:
    if not run.has("conservation"):
        return ""
    settings = run.config.attribution
    start = _STARTS[settings.start_value]
    norm = _NORMS[family_of(run.config.model).batch_norm(settings.batch_norm)]
    of_whom = " for scans of both classes" if len(run.task.outputs) == 2 else ""
    text = "Every scan was explained by the network that had not seen its participant"
    if run.is_given:
        text = f"Every scan was explained by the same network{'s' * (not is_foreign(run.config.model))}"
    if run.lrp_names:
        betas = listing([f"{beta:g}" for beta in settings.betas])
        text += WORDS.say("lrp", betas=betas, start=start, run=run, of_whom=of_whom, norm=norm)
    text += "."
    if GUIDED_MAP in run.map_names:
        text += f" Guided backpropagation [@guided], in absolute value, explains the {start} of {run.task.explained}."
    if run.evidence_maps:
        text += WORDS.say(
            "evidence",
            maps=[map_title(name) for name in run.evidence_maps],
            verb=_verb(len(run.evidence_maps)),
            reference=_reference(run),
            run=run,
            logits=" (the difference of the logits)" * bool(run.task.classes),
        )
    if any(name.startswith("inherent") for name in run.map_names):
        text += WORDS.say("inherent")
    known = (*run.lrp_names, GUIDED_MAP, *run.evidence_maps)
    others = [map_title(name) for name in run.map_names if name not in known]
    if others:
        text += f" {'Further maps' if run.lrp_names else 'Maps'} of {run.task.explained}: {listing(others)}."
    return text


def _reference(run: RunRecord) -> str:
    """What maps relative to controls compare a scan with."""
    for model in run.models.values():
        if "mean_of_controls" in model:
            return WORDS.say("reference", model=model)
    return f"up to {number(run.config.attribution.reference_size)} controls of the training part of its network"


def _verb(maps: int) -> str:
    return "compares" if maps == 1 else "compare"


def _regions(run: RunRecord) -> str:
    if not run.has("relevance_bilateral"):
        return ""
    atlas = recorded_source(run, "atlas")
    groups = run.tables["relevance_bilateral"]["group"].nunique()
    over = "participants, each by the mean of their scans" * (run.config.regions.gain_reference == "participants")
    own = OWN_REGIONS_TABLE.path(run.layout).is_file()
    beside = f" {OWN_REGIONS_TABLE.file} has their sums over a segmentation of each person, where there was one." * own
    return WORDS.say(
        "regions",
        atlas=atlas.get("title", run.config.regions.atlas),
        groups=groups,
        run=run,
        over=over or "scans",
        beside=beside,
    )


def _statistics(run: RunRecord) -> str:
    if not run.has("performance"):
        return ""
    settings = run.config.statistics
    text = WORDS.say("intervals", level=100 * settings.confidence, settings=settings)
    if run.has("volume_association"):
        text += WORDS.say("volume", settings=settings) + _change_within(run)
    text += "."
    if run.has("group_comparisons"):
        text += WORDS.say("comparisons", settings=settings, networks=_networks(run))
    return text


def _change_within(run: RunRecord) -> str:
    table = run.tables["volume_association"]
    if table.loc[table["unit"] == WITHIN, "r"].isna().all():
        return ""
    return WORDS.say("change_within")


def _networks(run: RunRecord) -> str:
    """What the comparison of the classes does about each fold having its own network."""
    if run.tables["group_comparisons"]["fold_held"].fillna(False).astype(bool).any():
        return WORDS.say("fold_held")
    return "The test fold is not in the model."


def _curves(run: RunRecord) -> str:
    if not run.has("calibration"):
        return ""
    return (
        "Calibration was assessed in bins of probability in which each participant counts once, with Wilson intervals."
    )


_ORDER = ("associations", "comparisons", "subgroups", "progression", "harmonisation", "norms", "shortcuts", "agreement")
"""Questions in the order of the text; others follow."""


def further_analyses(run: RunRecord) -> str:
    """What each question says of how it was answered."""
    places = {name: place for place, name in enumerate(_ORDER)}
    questions = sorted(ANALYSES, key=lambda question: places.get(question.id, len(places)))
    said = [PRIMARY.of_facts(PRIMARY.methods, run), _curves(run)]
    return " ".join(filter(None, [*said, *(question.of_facts(question.methods, run) for question in questions)]))


PARAGRAPHS: Sequence[tuple[str, Callable[[RunRecord], str]]] = (
    ("Participants", _data),
    ("Registration", _registration),
    ("Classifier", _training),
    ("Explanation", _attribution),
    ("Regions", _regions),
    ("Statistics", _statistics),
    ("Further analyses", further_analyses),
)
