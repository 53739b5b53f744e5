"""Topics that only some recipes need; each is a folder with all its parts.

The subfolders of a topic extend the packages of the same name: `contrib/retrieval/objectives/` adds
objectives, `tasks/` adds tasks, `evals/` evaluators and `models/` families; `slots.names` lists
them with the package's. The rest of the package imports nothing from `contrib`, and topics import
nothing from each other. A topic's folder can therefore be deleted, together with its tests in
`tests/contrib/` and its recipes.
"""
