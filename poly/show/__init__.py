"""Trees as HTML and SVG.

Pictures of instances, refusals and networks are in `farkas.views`, which builds on this.
"""
