"""
Explain your own network
========================

Any network of PyTorch is explained on any image. This one is trained here, in seconds, without the people it is
tested on.
"""

import tempfile

import torch
from torch import nn

import heatlas

run = heatlas.open("../../demo/run")
people = run.predictions.drop_duplicates("participant_id")
images = [run.image(person) for person in people["participant_id"]]
volumes = torch.stack([torch.from_numpy(image.get_fdata(dtype="float32"))[None] for image in images])
ill, tested = torch.tensor((people["label"] == "AD").tolist()), torch.tensor((people["fold"] == 0).tolist())

torch.manual_seed(0)
network = nn.Sequential(
    nn.AvgPool3d(4), nn.Conv3d(1, 6, 3), nn.ReLU(), nn.AvgPool3d(2), nn.Flatten(), nn.LazyLinear(2)
)  # fmt: skip
network(volumes[:1])
optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(80):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(volumes[~tested]), ill[~tested].long()).backward()
    optimiser.step()

# %%
# The map of a patient, compared with the controls of the training part. ``missing`` is what it lacks of the difference.
patient = int((ill & tested).nonzero()[0])
controls = [image for image, out in zip(images, (ill | tested).tolist(), strict=True) if not out]
found = heatlas.explain(network, images[patient], "deeplift", target=1, reference=controls)
print(f"evidence {found.value:.3f}, of the controls {found.reference_value:.3f}, missing {found.missing:.1e}")
found.save(tempfile.mkdtemp())  # map.nii.gz, regions.tsv, explained.json
found.regions().head(8)
