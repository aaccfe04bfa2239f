"""
Compare methods
===============

Methods answer different questions about the same network and scan. The table has the rank correlation of their sums
over regions, which is often far from 1.
"""

import pandas as pd

import heatlas

run = heatlas.open("../../demo/run")
people = run.predictions.drop_duplicates("participant_id")
patient = people.query("label == 'AD'")["participant_id"].iloc[0]
network, image = run.network(patient), run.image(patient)

# %%
# The reference are controls of other folds: with these the network of this patient was trained.
fold = people.set_index("participant_id")["fold"][patient]
names = people.query("label == 'CN' and fold != @fold")["participant_id"].head(5)
controls = [run.image(name) for name in names]
needs = heatlas.methods().set_index("method")["needs_reference"]

densities = {}
for method in ("deeplift", "expected-gradients", "lrp", "input-x-gradient", "guided-backpropagation"):
    reference = controls if needs[method] else ()
    found = heatlas.explain(network, image, method, target=1, reference=reference)
    densities[method] = found.regions().set_index("region")["density"]
pd.DataFrame(densities).corr("spearman").round(2)
