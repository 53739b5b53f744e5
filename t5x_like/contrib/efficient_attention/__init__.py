"""Efficient attention: sparse, projected and compressed attention for long sequences.

It has the cores of BigBird, Linformer and T-DMCA, and for each core the family of its paper.
"""
