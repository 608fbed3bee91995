"""What a person meets in Jupyter. Thin: it parses and hands on.

`kernel`       the `sciml` kernel: IPython with the extension loaded, and pools that live through a restart
`kernelspec`   writes the kernelspec: `python -m sciml_kernel.jupyter.kernelspec install`
`extension`    `%load_ext sciml_kernel`
`magics`       `%pool`, `%%ranks`, `%runs`
`arguments`    options of magics: a wrong one is a UsageError, not an exit
`rank_output`  what `%%ranks` prints and shows; `rank_screen`: bars and other lines that are redrawn
`tracebacks`   how an error looks in a cell
`help`         banner, completion and `?` of the magics
`display`      live figures as IPython display handles
`ownership`    which pools end with this kernel
`lab`          `sciml lab`
"""
