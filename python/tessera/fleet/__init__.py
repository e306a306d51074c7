"""Many programs tuned by many processes: here, on Dask, on Ray, or as shards of a job array.

A campaign (campaign.py) turns programs into tasks, texts in and texts out (tasks.py), and gives
them to an executor (executors.py). All that it knows is in a store, so that whoever is killed loses
the task at hand alone, and nothing that a worker says is believed before it is proved.
"""
