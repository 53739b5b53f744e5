"""Dense retrieval: models that retrieve passages and answer from them (REALM, DPR).

The model is a `retriever_reader.RetrieverReader`; `search` finds passages on the devices, and
`faiss_search` in the host's memory.
"""
