// Metadata: operators that read shapes and dtypes and never a value. They run once, on the deferred tensors themselves.
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict metadata(OpCall&) { return Verdict::kReal; }

const RegisterRules kTable{
    {"aten::dim", metadata},
    {"aten::is_complex", metadata},
    {"aten::is_floating_point", metadata},
    {"aten::is_same_size", metadata},
    {"aten::is_signed", metadata},
    {"aten::new_empty", metadata},
    {"aten::new_empty_strided", metadata},
    {"aten::new_full", metadata},
    {"aten::new_ones", metadata},
    {"aten::new_zeros", metadata},
    {"aten::numel", metadata},
    {"aten::result_type", metadata},
    {"aten::size", metadata},
    {"aten::stride", metadata},
    {"aten::sym_numel", metadata},
    {"aten::sym_size", metadata},
    {"aten::sym_stride", metadata},
};

}  // namespace
}  // namespace koila
