"""Stands where there is no matplotlib_inline: figures are shown in one way here."""
