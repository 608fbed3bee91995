"""sciml_kernel: MPI engine pools that train Horovod-distributed TensorFlow models from Jupyter."""
