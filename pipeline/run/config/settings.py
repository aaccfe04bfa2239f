"""The settings of a run: one frozen record per stage, checked together before any work starts.

The defaults of the records are the preset ``default``; `pipeline.run.config.files` reads the others from TOML.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Annotated, Literal

from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, KINDS, T1W, ImageKind, Suffix, template_name
from heatlas.pipeline.run.config.inclusion import class_names, class_problems, read_rule
from heatlas.pipeline.run.config.networks import ModelConfig, ObjectiveConfig, PretrainingConfig, default_network
from heatlas.pipeline.run.config.ranges import (
    RISING,
    Count,
    Fraction,
    Limit,
    Probability,
    Seed,
    above,
    at_least,
    between,
    matching,
    naming,
    problems,
)
from heatlas.pipeline.run.config.statistics import EvaluationConfig, StatisticsConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.providers import ClusterConfig

_HIDDEN_COLUMNS = {"sites": {"site"}, "ids": {"participant_id", "scan_id"}}
"""Columns whose values a pseudonym replaces, which a rule would write out."""
UpTo1000 = Annotated[int, between(1, 1000)]
_HUNDREDTHS = Limit("be of at most two decimals", lambda number: round(number, 2) == number)
SCAN_FIELDS = ("participant_id", "session_id", "name", "scan_id")
"""Fields that a pattern of file names may contain; ``name`` is participant and session as in BIDS names."""


@dataclass(frozen=True)
class CohortConfig:
    """The cohort: participants, classes or number to predict, and split."""

    contrast_column: str = "diagnosis"
    """Column of the classes."""
    negative: str = "CN"
    """Class that is compared with: a value of the column, or a comparison of its numbers such as ``<0.5``."""
    positive: str = "AD"
    """The other class, such as ``>=0.5``; with more than two classes, the one whose output is explained."""
    classes: tuple[str, ...] = ()
    """All classes, for more than two: in the order of the output units, the negative class first."""
    target: str = ""
    """A numeric column to predict (regression) instead of classes."""
    include: str = ""
    """Who takes part, as a rule on columns of the scan table, the clinical table or the source, such as
    ``age >= 60 and cdr >= 0``; docs/inputs.md. Empty: everybody."""
    split: Literal["folds", "single"] = "folds"
    """Cross-validation, in which every participant is tested once, or one split as in the founding study."""
    folds: Annotated[int, at_least(2)] = 5
    """Parts of the cross-validation; each class needs at least as many participants."""
    balance: tuple[Literal["sex", "age", "site", "field_strength"], ...] = ("sex", "age", "site")
    """What folds are made alike in, beside the class, as far as it is known. A single split is not balanced."""
    validation_fraction: Annotated[float, above(0, below=1)] = 0.2
    """Share of the participants outside the test fold that selects the epoch."""
    test_participants_per_class: Count = 30
    """Test participants of a single split, per class."""
    validation_participants_per_class: Count = 18
    """Validation participants of a single split, per class."""
    shuffle_labels: bool = False
    """Labels change places between participants; a control run, not for conclusions."""
    start_at: Literal["auto", "scan", "brain", "template"] = "auto"
    """Where images enter: each as recognised (auto), or all as scans, as brains already extracted, or as brains
    already in template space."""
    suffix: Suffix = "T1w"
    """Kind of image, by the last part of BIDS names. What is not a T1-weighted image is registered through that of its
    session, or given in template space; docs/inputs.md."""
    further_suffixes: tuple[Suffix, ...] = ()
    """Further kinds of images of the same session, such as ``FLAIR``, which networks see as channels after the first.
    Sessions that lack one of them are left out; docs/inputs.md."""
    label: Annotated[str, matching("[A-Za-z0-9]*", "hold letters and digits only")] = ""
    """Which map of tissue, by ``label-`` of its name, such as ``GM``; for images of the kind ``probseg`` only."""
    oasis_image: Literal["subject", "atlas"] = "subject"
    """Image that is taken of an OASIS-1 download: the averaged head in the space of the scan (SUBJ_111), or the brain
    in the atlas of Talairach (T88_111)."""
    max_voxel_mm: Annotated[float, above(0)] = 5.0
    """Scans with thicker slices are dropped: the hippocampus is about 8 mm high."""
    diagnosis_rule: Literal["diagnosis", "cdr"] = "diagnosis"
    """How CN and AD are defined at a visit: by the diagnosis, or by the CDR (0, above 0.5) as in the text of the
    founding study; docs/founding_study.md."""
    mci_horizon_months: Count = 36
    """MCI with AD within this time is progressive (pMCI), otherwise stable (sMCI) if followed that long."""
    preferred_protocol: Literal["full", "accelerated"] = "full"
    """Which of two images of a visit is used."""
    preferred_field_strength: Literal["1.5", "3"] = "1.5"
    """In tesla; which of two images of a visit is used."""
    failed_quality: Literal["drop", "keep"] = "drop"
    """Scans that failed ADNI's quality control; if kept, they are used only if the visit has no other."""
    table: str = ""
    """Table (CSV or TSV) with the path of each image, its participant, and what is known of them, for a folder of
    images of any names; docs/inputs.md. Set by ``--table``."""
    freesurfer_folder: str = ""
    """Folder of FreeSurfer or FastSurfer subjects, for hippocampal and intracranial volumes."""
    without: str = ""
    """Table whose column ``participant_id`` names people who are left out, such as those whom a network of your own
    was trained with; names that the input does not have are passed over. Its path, and the two above, count from the
    folder of the settings file, or else of the command."""
    apply_outside_contrast: bool = True
    """Also predict and explain scans outside the contrast (MCI); if off, they are dropped."""
    clinical_columns: tuple[str, ...] = ()
    """Further columns of the source tables for ``clinical.tsv``, by their names there."""

    def __post_init__(self) -> None:
        names = class_names((self.negative, self.positive, *self.classes), self.contrast_column)
        for setting, value in zip(("negative", "positive", "classes"), (*names[:2], names[2:]), strict=True):
            object.__setattr__(self, setting, value)  # classes by number are known by their names

    @property
    def labels(self) -> tuple[str, ...]:
        return self.classes or (self.negative, self.positive)

    @property
    def kind(self) -> ImageKind:
        """What the images are; of several kinds, those of the first."""
        return KINDS[self.suffix]

    @property
    def kinds(self) -> tuple[ImageKind, ...]:
        """The kinds of images, in the order of the channels that networks see."""
        return tuple(KINDS[suffix] for suffix in (self.suffix, *self.further_suffixes))

    def checks(self) -> list[tuple[bool, str]]:
        classes = self.classes
        return [
            (self.negative != self.positive, "cohort.negative and cohort.positive must differ"),
            (
                not classes or len(set(classes)) == len(classes) >= 3,
                "cohort.classes must name at least three classes, each once; two are cohort.negative and "
                "cohort.positive",
            ),
            (
                not classes or (classes[0] == self.negative and self.positive in classes),
                "cohort.classes must begin with cohort.negative and hold cohort.positive, the class that is explained",
            ),
            *((False, f"cohort: {text}") for text in class_problems(self.labels, self.contrast_column)),
            (not (self.target and classes), "cohort.target and cohort.classes exclude each other"),
            (
                ("probseg" in (self.suffix, *self.further_suffixes)) == bool(self.label),
                'cohort.suffix = "probseg" and cohort.label (which map, such as "GM") go together: set both or none',
            ),
            (
                len({self.suffix, *self.further_suffixes}) == 1 + len(self.further_suffixes),
                "cohort.further_suffixes must name other kinds than cohort.suffix, each once",
            ),
            (
                T1W.suffix not in self.further_suffixes,
                'cohort.further_suffixes: T1-weighted images come first, as cohort.suffix = "T1w"',
            ),
            (
                not self.target or self.split == "folds",
                'cohort.split = "single" counts participants per class; for a number (cohort.target) set "folds"',
            ),
        ]


@dataclass(frozen=True)
class PrivacyConfig:
    """What outputs hide; the secret key is a separate file (`pipeline.cohort.sharing`)."""

    shift_dates: bool = False
    """Shift all dates of a participant by the same number of days; set by ``--anonymise``."""
    pseudonyms: tuple[Literal["sites", "ids"], ...] = ()
    """``sites``, ``ids`` (of participants and images), both or none."""
    faces: Literal["auto", "keep", "remove"] = "auto"
    """Faces of heads converted from DICOM, the only ones in a run: ``auto`` removes them if anything is hidden."""

    @property
    def removes_faces(self) -> bool:
        return self.faces == "remove" or (self.faces == "auto" and (self.shift_dates or bool(self.pseudonyms)))


@dataclass(frozen=True)
class RegistrationConfig:
    """How a scan is brought to template space."""

    resolution_mm: Annotated[float, between(0.5, 4)] = 1.0
    """Voxel size of the template."""
    template: str = DEFAULT_TEMPLATE
    """Name in TemplateFlow, or path of a folder ``tpl-NAME`` laid out as there; another than the default needs labels
    in its space by path in ``regions.atlas``."""
    brain_extraction: Literal["auto", "deepbet", "given-mask", "template-mask", "synthstrip", "none"] = "auto"
    """How the brain is found; docs/registration.md explains each."""
    bias_correction: bool = True
    """Correct slow changes of intensity (N4) before registration."""
    transform: Literal[
        "SyNQuick[a]+SyN[0.5,CC2+MI32,8mm:100,4mm:70,2mm:10]",
        "antsRegistrationSyNQuick[s]",
        "antsRegistrationSyNQuickRepro[s]",
        "SyN[0.5,MI32,16mm:100,8mm:70,4mm:10]",
        "syn",
        "syn-quick",
        "affine",
        "affine-torch",
    ] = "SyNQuick[a]+SyN[0.5,CC2+MI32,8mm:100,4mm:70,2mm:10]"
    """Parameters of ANTs. The first: linear stages of the second, then SyN with a gradient step of 0.5 by
    cross-correlation of neighbourhoods of radius 2 and mutual information (32 bins) together, with these iterations at
    voxels of 8, 4 and 2 mm. The second, that of the founding study, has mutual information alone, the third
    cross-correlation alone; both have steps of 0.2 and 50 iterations at half the resolution of the template. Measured
    in docs/registration.md. The fourth, that of the demo, takes half the time of the second at 2 mm: mutual
    information, nothing finer than 4 mm. ``syn`` and ``syn-quick`` are names of the first two. ``affine``: their linear
    stages alone (12 parameters), which leaves all local atrophy in the image; regions then have no volume, but for the
    tissue of the hippocampus. ``affine-torch``: 12 parameters without ANTs, which ``affine`` means where ANTs is not
    installed."""
    mask_pattern: str = ""
    """Path of the mask of a scan in the input folder, with {participant_id}, {session_id}, {name}, {scan_id}."""
    synthstrip_model: str = ""
    """Weights file of SynthStrip; the command mri_synthstrip of FreeSurfer must be installed too."""
    flagged: Literal["keep", "drop", "ask"] = "keep"
    """What happens to scans whose registration is in doubt; ``ask`` stops until all are decided."""
    hippocampus_source: Literal["auto", "table", "fill", "jacobian"] = "auto"
    """Source of hippocampal volumes: the input tables (table), measured ones if the input has none at all (auto) or
    where one is missing (fill), or measured ones for every scan (jacobian), from the Jacobian determinant."""
    seed: Annotated[int, at_least(-1)] = -1
    """For ANTs; -1: the seed of the run when its folder is created. Changing ``seed`` later redoes no registration."""

    @property
    def affine_only(self) -> bool:
        """Whether 12 parameters bring a scan to the template."""
        return self.transform in ("affine", "affine-torch")

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (
                template_name(self.template) != "",
                "registration.template must be a name of TemplateFlow, or the path of a folder that is called tpl-NAME",
            ),
            (
                not self.mask_pattern or _names_a_scan(self.mask_pattern),
                "registration.mask_pattern may hold only "
                + ", ".join("{" + name + "}" for name in SCAN_FIELDS)
                + ", and must hold one that differs between scans",
            ),
            (
                self.brain_extraction != "synthstrip" or self.synthstrip_model != "",
                'registration.brain_extraction = "synthstrip" needs registration.synthstrip_model, its weights file',
            ),
        ]


@dataclass(frozen=True)
class AugmentationConfig:
    """Augmentation beyond flips and shifts, by MONAI; a probability of 0 switches a transform off.

    Random numbers depend only on the seed, the epoch and the scan.
    """

    affine_probability: Probability = 0.0
    """Probability of a rotation and a change of size."""
    rotation_degrees: Annotated[float, between(0, 180)] = 10.0
    """Largest rotation about each axis."""
    scaling: Fraction = 0.1
    """Largest change of size along each axis, as a share."""
    bias_field_probability: Probability = 0.0
    """Probability of a slow change of intensity."""
    bias_field_strength: Annotated[float, between(0, 10)] = 0.3
    """Largest coefficient of the polynomial whose exponential multiplies the image."""
    contrast_probability: Probability = 0.0
    """Share of training images whose contrast is changed, by raising the intensities to a random power."""
    gamma: Annotated[tuple[float, float], RISING, above(0, up_to=10)] = (0.7, 1.5)
    """Lowest and highest exponent of the intensities."""
    noise_probability: Probability = 0.0
    """Probability of Gaussian noise."""
    noise_sd: Annotated[float, between(0, 10)] = 0.05
    """Largest standard deviation of Gaussian noise; intensities lie in [0, 1]."""
    cutout_probability: Probability = 0.0
    """Probability of cubes without tissue."""
    cutout_count: UpTo1000 = 4
    """Cubes of a scan."""
    cutout_voxels: UpTo1000 = 8
    """Edge of the cubes that are set to 0."""

    @property
    def is_on(self) -> bool:
        return any(value > 0 for name, value in vars(self).items() if name.endswith("_probability"))


@dataclass(frozen=True)
class TrainingConfig:
    """How the network learns."""

    learning_rate: Annotated[float, above(0, up_to=10)] = 1e-4
    """Learning rate of the Adam optimiser."""
    head_learning_rate_factor: Annotated[float, above(0, up_to=100)] = 1.0
    """Times the learning rate, for the last stage of the network alone, which makes the logits."""
    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """``cosine`` falls to 0 over `max_epochs`."""
    weight_decay: Annotated[float, between(0, 10)] = 1e-4
    """Weight decay of the Adam optimiser."""
    batch_size: Annotated[int, between(1, 100_000)] = 4
    """Scans per batch."""
    max_epochs: Count = 200
    """Passes over the training scans at most."""
    min_epochs: Count = 15
    """First epochs, none of which is kept, while batch statistics still change."""
    patience: Count = 8
    """Epochs without a lower validation loss after which training stops."""
    flip_probability: Probability = 0.5
    """Probability of exchanging left and right in training."""
    max_shift_voxels: Annotated[int, at_least(0)] = 2
    """Largest shift along each axis in training."""
    balance_classes: bool = True
    """Weight the loss so that each class counts the same."""
    from_run: str = ""
    """Folder of a finished run whose networks the training starts from: of the same architecture and settings, or, for
    B-cos networks, conventional ones. Each fold starts from a network that knows none of the people it tests. If
    that run had another task (age before diagnosis), all but the last stage is taken."""
    networks_of: str = ""
    """Folder of a finished run whose networks, of all folds together, answer as they are; nothing is trained. Set by
    ``heatlas apply``."""
    loss: Literal["usual", "cross-entropy", "binary-cross-entropy", "off-target"] = "usual"
    """For classes; ``usual`` is that of the architecture: off-target for B-cos networks, cross-entropy for others. With
    ``off-target`` a wrong class is to have no evidence; with ``binary-cross-entropy``, evidence against it."""
    weight_penalty: Annotated[float, between(0, 1000)] = 0.0
    """Times the mean absolute weight that a B-cos or CoDA network gives its input, added to the loss: sparser maps."""
    clip_gradients: Annotated[float, between(0, 100)] = 0.0
    """Largest gradient of a unit, as a share of the size of its weights (adaptive clipping); 0 for no limit."""
    weight_average: Fraction = 0.0
    """Share of a moving average of the weights that stays at each step, such as 0.99; the average is what is validated
    and stored. 0 for none."""
    centre_logits: Literal["none", "training", "validation"] = "none"
    """The part whose scans decide on a constant for each class, which is fitted after training and added to its logit:
    a B-cos or CoDA network that ranks well may give all scans the same class."""
    warmup_epochs: Annotated[int, at_least(0)] = 0
    """First epochs, over which the learning rate rises from 0 in equal steps."""
    control: Literal["none", "binarised"] = "none"
    """``binarised``: networks see brain masks instead of images, and can use only the contour of the brain extraction;
    a control run, not for conclusions."""
    regression_loss: Literal["mse", "huber"] = "mse"
    """For a number (``cohort.target``): squared error, or Huber's loss, which is linear beyond one standard deviation
    of the target."""
    participants: Annotated[float, above(0, up_to=1)] = 1.0
    """Share of the training participants of each class who are used, at least one: few-shot learning. The others take
    no part in training."""
    repeats: UpTo1000 = 1
    """Networks per fold, with different seeds but the same registration and split. Maps are those of the
    first."""
    ensemble: Annotated[int, between(1, 100)] = 1
    """Networks per fold that answer as one, each from a seed of its own: the prediction is that of their mean logits,
    and maps are means of their maps. Their spread stands beside predictions and evidence."""
    accumulate: UpTo1000 = 1
    """Batches whose gradients are averaged before a step: a step sees ``batch_size`` x ``accumulate`` scans."""
    precision: Literal["auto", "float32", "bfloat16-mixed"] = "auto"
    """``auto``: bfloat16-mixed on a GPU that computes in it, otherwise float32. Predictions and maps are always
    float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: a GPU where PyTorch finds one."""
    devices: Count = 1
    """Devices that share the scans of a batch: GPUs, or processes on the CPU."""
    threads: Annotated[int, between(1, 1024)] = 1
    """Threads of each training process on the CPU; more than one may change the last digits."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (self.min_epochs <= self.max_epochs, "training.min_epochs must lie in 1..max_epochs"),
            (self.warmup_epochs < self.max_epochs, "training.warmup_epochs must lie in 0..max_epochs - 1"),
            (self.devices <= self.batch_size, "training.devices must lie in 1..batch_size"),
        ]


@dataclass(frozen=True)
class AttributionConfig:
    """Attribution methods and their settings."""

    methods: Annotated[tuple[str, ...], naming(1, "method", once=True)] = (
        "lrp",
        "guided-backpropagation",
        "expected-gradients",
    )
    """Methods that explain every scan, by the names that ``heatlas explain --help`` lists."""
    settings: tuple[str, ...] = ()
    """Settings of methods: ``method:key=value``, or ``key=value`` for all methods named."""
    betas: Annotated[tuple[float, ...], naming(1, once=True), at_least(0, below=10), _HUNDREDTHS] = (
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
    )
    """Values of β in LRP's β-rule, one map each; not used if `settings` has settings of LRP, which then makes one
    map."""
    batch_norm: Literal["auto", "fold", "identity"] = "auto"
    """``auto``: folded into the convolutions where the network allows it, otherwise passed through unchanged."""
    start_value: Literal["logit", "probability", "evidence"] = "logit"
    """What LRP and guided backpropagation explain: the logit, the softmax probability as in the founding study, or the
    evidence, the logit less that of the other class, which does not level off near certainty."""
    reference: Literal["controls"] = "controls"
    """Whom evidence maps compare a scan with: people of the negative class in the training part of its network; where
    a number is predicted, everybody in that part."""
    reference_size: Count = 12
    """Participants of a reference, one scan each; fewer where a training part has fewer."""
    reference_match: Annotated[tuple[Literal["age", "sex", "site"], ...], naming(0, once=True)] = ()
    """Take the participants most like the scan that is explained in ``age``, ``sex`` or ``site``. By default all scans
    of a fold have the same reference."""
    plant: Annotated[tuple[str, ...], naming(0, once=True)] = ()
    """Regions or bilateral groups of the atlas. A tenth of each is taken out of every scan, to see whether answer and
    leading map follow; of a single scan that networks of another run are applied to, also of one hippocampus."""
    keep_maps: Literal["none", "group", "all"] = "all"
    """Maps that are written: none, the mean maps of groups, or also those of single scans. Tables need no map."""


GainReference = Literal["participants", "scans"]


@dataclass(frozen=True)
class RegionsConfig:
    """Which atlas the maps are summed over, and what gain divides by."""

    atlas: str = "neuromorphometrics-cat12"
    """Name of an atlas, or path of a label image with a table beside it; docs/atlases.md lists them."""
    gain_reference: GainReference = "participants"
    """Mean sum of the negative class in the test fold: over participants, each by the mean of their scans, or over
    scans as in the founding study, where a control with five scans counts five times."""
    own_labels: str = ""
    """Path of the segmentation of a scan in the input folder, with {participant_id}, {session_id}, {name}, {scan_id}:
    maps are also summed over these regions. Empty: ``aparc+aseg.mgz`` of FreeSurfer or FastSurfer beside the image,
    where there is one; docs/inputs.md."""

    def checks(self) -> list[tuple[bool, str]]:
        fields = ", ".join("{" + name + "}" for name in SCAN_FIELDS)
        return [
            (
                not self.own_labels or _names_a_scan(self.own_labels),
                f"regions.own_labels may hold only {fields}, and must hold one that differs between scans",
            )
        ]


@dataclass(frozen=True)
class ReportConfig:
    """Settings of the report."""

    title: str = "Region-relevance report"
    """Heading of the report."""
    people: bool = True
    """Whether single people are shown: their pages, rows, pictures and names. If not, the pages show groups only."""


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    seed: Seed = 43
    """Seed of every random number of the run: split, training, methods, permutations."""
    cohort: CohortConfig = field(default_factory=CohortConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    registration: RegistrationConfig = field(default_factory=RegistrationConfig)
    model: ModelConfig = field(default_factory=default_network)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    pretraining: PretrainingConfig = field(default_factory=PretrainingConfig)
    attribution: AttributionConfig = field(default_factory=AttributionConfig)
    regions: RegionsConfig = field(default_factory=RegionsConfig)
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        for problem in problems(self):
            raise UsageError(f"configuration: {problem}")
        rule = read_rule(self.cohort.include) if self.cohort.include else None
        for hidden, columns in _HIDDEN_COLUMNS.items():
            if rule is not None and hidden in self.privacy.pseudonyms and columns & {*map(str.lower, rule.columns)}:
                raise UsageError(
                    f'configuration: privacy.pseudonyms may not hold "{hidden}" where cohort.include names them'
                )

    def checks(self) -> list[tuple[bool, str]]:
        cohort, training, objective, attribution = self.cohort, self.training, self.objective, self.attribution
        return [
            (
                "sites" not in self.privacy.pseudonyms or cohort.contrast_column != "site",
                'privacy.pseudonyms may not hold "sites" where the contrast is site',
            ),
            (
                not self.regions.own_labels or attribution.keep_maps == "all",
                'regions.own_labels needs the maps of single scans: set attribution.keep_maps = "all"',
            ),
            (
                not self.regions.own_labels or "ids" not in self.privacy.pseudonyms,
                'regions.own_labels finds files by ids, which privacy.pseudonyms = ["ids"] replaces: leave one out',
            ),
            (
                not objective.own_anatomy or "ids" not in self.privacy.pseudonyms,
                'objective.region_labels = "own" finds files by ids, which privacy.pseudonyms = ["ids"] replaces: '
                "leave one out",
            ),
            (
                not cohort.target or attribution.start_value != "probability",
                'attribution.start_value = "probability" is not defined for a number (cohort.target); set "logit"',
            ),
            (
                not (cohort.target and self.model.needs_classes),
                f"{self.model.needs_classes} is not defined for a number (cohort.target), which has no classes: "
                "take it out",
            ),
            (
                self.model.maps_voxels or "inherent" not in attribution.methods,
                'with model.embedding, "inherent" has no map of voxels: leave it out of attribution.methods',
            ),
            (
                training.centre_logits == "none" or (self.model.dynamic_linear and not cohort.target),
                "training.centre_logits needs classes and a B-cos or CoDA network (model.architecture, cohort.target)",
            ),
            (
                training.centre_logits != "training" or not objective.scans,
                'training.centre_logits = "training" needs labels, which scans of objective.scans do not have: set '
                '"validation"',
            ),
            (
                not objective.mixup or training.batch_size >= 2 * training.devices,
                "objective.mixup mixes scans of a batch: training.batch_size must be 2 or more for each of "
                "training.devices",
            ),
            (
                not training.weight_penalty or self.model.dynamic_linear,
                f"training.weight_penalty needs a B-cos or CoDA network, and {self.model.architecture!r} is neither",
            ),
            (
                training.ensemble == 1 or not objective.uses_maps,
                f'training.ensemble must be 1 where objective.kind = "{objective.kind}": what is learned is measured '
                "on one network",
            ),
            (
                training.devices == 1 or not objective.uses_maps,
                f'training.devices must be 1 where objective.kind = "{objective.kind}": its maps are made stage by '
                "stage",
            ),
            (
                training.augmentation.affine_probability == 0 or not objective.moves_maps,
                'training.augmentation.affine_probability must be 0 where objective.kind = "guided" or '
                "objective.frozen is true: masks and maps are not moved along",
            ),
            (
                not cohort.further_suffixes or objective.kind == "task",
                f'cohort.further_suffixes must be empty where objective.kind = "{objective.kind}": what is taught is '
                "the map of one image",
            ),
        ]


def _names_a_scan(pattern: str) -> bool:
    """Whether a pattern of file names holds only known fields, and at least one."""
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(pattern) if field is not None}
        pattern.format(**dict.fromkeys(SCAN_FIELDS, ""))
    except (ValueError, KeyError, IndexError, AttributeError):
        return False
    return fields <= set(SCAN_FIELDS) and bool(fields)
