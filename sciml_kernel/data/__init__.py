"""From files to batches. Only `batches` imports TensorFlow.

`readers`    file formats
`manifest`   what a folder of universes holds, `manifest.json`
`universe`   samples of such a folder by number
`stats`      mergeable mean and variance
`sharding`   who reads what in an epoch
`batches`    tf.data pipelines (on the ranks)
"""
