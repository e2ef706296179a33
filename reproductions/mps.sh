# Lets several processes use one GPU at the same time (NVIDIA MPS); without it they take turns. To be sourced by the gpu.sh scripts:
#     . reproductions/mps.sh; mps_start PYTHON; ...; mps_stop
# It goes on without MPS where that is missing or does not work, and leaves alone a daemon that the caller has started.
mps_folder=

mps_start() { # PYTHON
    if [ "${DEVICE:-cuda}" != cuda ] || ! command -v nvidia-cuda-mps-control >/dev/null; then echo "MPS: not used"; return 0; fi
    if [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then echo "MPS: the caller's"; return 0; fi
    mps_folder=$(mktemp -d /tmp/mps.XXXXXX)
    export CUDA_MPS_PIPE_DIRECTORY=$mps_folder/pipe CUDA_MPS_LOG_DIRECTORY=$mps_folder/log
    mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d </dev/null >"$mps_folder/start.log" 2>&1
    if timeout 60 "$1" -c "import torch; assert torch.ones(3, device='cuda').sum().item() == 3" >"$mps_folder/try.log" 2>&1; then
        echo "MPS: on"
    else
        mps_stop
        echo "MPS: does not work here, going on without it"
    fi
}

mps_stop() {
    [ -n "$mps_folder" ] || return 0
    echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
    rm -rf "$mps_folder"
    mps_folder=
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
