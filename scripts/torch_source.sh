# Sets `torch`, the arguments by which uv finds the CPU build of PyTorch; $1 is the pip whose settings count.
# uv does not read pip's find-links. Where one of these folders holds that build it is used; elsewhere uv takes it from
# PyTorch's own CPU index.
torch_source() {
  local folder
  torch=(--torch-backend cpu)
  for folder in $("$1" config get global.find-links 2>/dev/null || true) ${PIP_FIND_LINKS:-}; do
    if compgen -G "$folder/torch-2.13.0+cpu-*.whl" >/dev/null; then torch=(--find-links "$folder"); fi
  done
}
