"""Faults to put into koila on purpose, one at a time: such as a programmer makes. scripts/mutants tells which of them are found."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    text: str  # occurs once in the file
    instead: str
    wrong: str  # what is wrong then


def mutated(source, mutant):
    """The source with the fault in it."""
    times = source.count(mutant.text)
    if times != 1 or mutant.text == mutant.instead:
        raise SystemExit(f"{mutant.name}: its text occurs {times} times in {mutant.file}, and has to once; see tests/mutants/mutants.py")
    return source.replace(mutant.text, mutant.instead)


RULES = "torchglue/placement/rules/"

MUTANTS = [
    # ---- operators' rules --------------------------------------------------------------------------------------------------------
    Mutant("softmax_along_the_batch", RULES + "reductions.cc",
           "if (!dim || *dim == self.placement.dim) return Verdict::kNo;\n  return local(call, self.placement);",
           "if (!dim) return Verdict::kNo;\n  return local(call, self.placement);",
           "An operator along the batch's own dimension (a running sum, a sort) is split all the same."),
    Mutant("repeat_as_repeat_interleave", RULES + "joins.cc",
           "return Placement::shard(dim, self.placement.outer * (*repeats)[dim], self.placement.inner);",
           "return Placement::shard(dim, self.placement.outer, self.placement.inner * (*repeats)[dim]);",
           "The batch repeated as a whole is taken for each row repeated."),
    Mutant("index_fill_of_rows", RULES + "indexing.cc",
           "if (!p.is_shard() || p.dim == *dim || !call.require({0}, p)) return Verdict::kNo;\n  if (source.defined",
           "if (!p.is_shard() || !call.require({0}, p)) return Verdict::kNo;\n  if (source.defined",
           "A write to some rows by their number goes to the rows of that number of each micro-batch."),
    Mutant("triangle_of_rows", "torchglue/placement/rearranged.h",
           "if (self.placement.dim >= self.dim() - N) return std::nullopt;",
           "if (self.placement.dim > self.dim() - N) return std::nullopt;",
           "Off by one: the lower triangle of rows is taken of each micro-batch."),
    Mutant("product_of_two_sums", "torchglue/placement/contraction.cc",
           "if (partial != 1) return std::nullopt;",
           "if (partial == 0) return std::nullopt;",
           "The product of two sums over the rows is taken for the sum of products."),
    # ---- scaling of means --------------------------------------------------------------------------------------------------------
    Mutant("mean_not_scaled", "torchglue/placement/operands.cc",
           "  for (int64_t dim : *dims) entries *= static_cast<double>(self.sizes[dim]);\n",
           "",
           "The sums of micro-batches are added up and not divided, where a mean was asked for."),
    Mutant("ignored_targets_counted", RULES + "losses.cc",
           "return at::sum(counts);",
           "return at::sum(at::ones_like(counts));",
           "A cross entropy divides by all targets, and not by those that count."),
    Mutant("bias_once_a_micro_batch", RULES + "matrix.cc",
           "    if (bias.defined) call.weight_by_rows(2);\n",
           "",
           "A sum over rows that goes through a linear layer gets the bias once a micro-batch."),
    # ---- the micro-batch loop, and the last, ragged micro-batch ----------------------------------------------------------------
    Mutant("share_of_the_usual_size", "torchglue/region/run.cc",
           "    const double weight = static_cast<double>(rows) / static_cast<double>(batch_);\n    for",
           "    const double weight = static_cast<double>(std::min(micro_batch_, batch_)) / static_cast<double>(batch_);\n    for",
           "The last micro-batch, which has fewer rows, has the share of a whole one."),
    Mutant("write_through_alias_not_needed", "torchglue/region/paths.cc",
           "if (out != kNoValue && (value[out] || (in.in_place && group[values_[out].group]))) s.needed[i] = 1;",
           "if (out != kNoValue && value[out]) s.needed[i] = 1;",
           "A write through one view is left out where the result is read through another."),
    Mutant("freed_after_one_reader", "torchglue/region/paths.cc",
           "s.last_value[o.id] = std::max(s.last_value[o.id], i);",
           "s.last_value[o.id] = i;",
           "A value is let go after the first operator that reads it, and not after the last."),
    # ---- the backward pass -------------------------------------------------------------------------------------------------------
    Mutant("gradient_counted_twice", "torchglue/region/backward.cc",
           "  if (rows.end <= totals_until_[use]) return;  // summed before a later part of the micro-batch ran out of memory\n",
           "",
           "A micro-batch that is made again after an out-of-memory adds its gradients once more."),
    Mutant("gradient_of_one_use_lost", "torchglue/region/backward.cc",
           "result = result.defined() ? result + total : std::move(total);",
           "result = std::move(total);",
           "A tensor that is read both whole and by the row gets one of its two gradients."),
    Mutant("leaf_served_twice", "torchglue/rescue/interrupted.cc",
           "      if (served(*noted)) continue;\n",
           "      served(*noted);\n",
           "A backward pass that ran out in the middle gives the parameters that were done their gradient once more."),
    # ---- the conversion ----------------------------------------------------------------------------------------------------------
    Mutant("hooks_left_behind", "torchglue/rescue/convert.cc",
           "    hooks_.put_on(v, t);\n",
           "",
           "A graph is replaced, and the hooks that hung on tensors of it are gone."),
    Mutant("graph_of_what_runs_whole_lost", "torchglue/rescue/places.cc",
           "  if (made.requires_grad()) torch::autograd::impl::set_gradient_edge(alive, torch::autograd::impl::gradient_edge(made));\n",
           "",
           "A tensor that was made again at the full batch loses its graph."),
    # ---- the tape: captures, versions, aliases -----------------------------------------------------------------------------------
    Mutant("no_copy_before_a_write", "torchglue/tape/writes.cc",
           "    value.strong = copy_of(t);\n",
           "    value.strong = t.detach();\n",
           "A buffer that the step reads and then writes to is kept, but not copied: the step made again reads what was written."),
    Mutant("write_behind_not_noted", "torchglue/tape/writes.cc",
           "      if (traits.metadata) return;\n      note_write_behind(t);\n",
           "      if (traits.metadata) return;\n",
           "A write through .data is not seen by the tape."),
    Mutant("region_not_told_of_a_write", "torchglue/lazy/writes.cc",
           "    }\n    s.before_write(storage_of(t));\n  });\n  if (!op_traits",
           "    }\n  });\n  if (!op_traits",
           "A region does not hear that what it has read is written to."),
    Mutant("capture_not_copied", "torchglue/region/writes.cc",
           "capture.before = capture.as_read().detach().clone(); });",
           "capture.before = capture.as_read().detach(); });",
           "What a region has read is kept without a copy when the program writes to it before backward."),
    # ---- views and writes --------------------------------------------------------------------------------------------------------
    Mutant("base_of_a_write_without_gradient", "torchglue/region/join.cc",
           "      if (has_node(result.local)) region_.attach_gradients(region_.values_[id].group);\n",
           "",
           "A tensor into whose view something differentiable is written does not get differentiable."),
    # ---- stages, running statistics ----------------------------------------------------------------------------------------------
    Mutant("moments_not_combined", "torchglue/statistics/moments.cc",
           "delta.square() * (static_cast<double>(count_) * static_cast<double>(n) / total)",
           "delta.square() * (static_cast<double>(n) / total)",
           "The variance of two parts is combined with the wrong weight."),
    Mutant("running_variance_biased", "torchglue/stages/staged.cc",
           "{running_var, found.var * unbiased(found.count)}",
           "{running_var, found.var}",
           "A batch norm's running variance is the biased one."),
    Mutant("half_of_the_statistics", "torchglue/statistics/running_arguments.cc",
           'return argument == "running_mean" || argument == "running_var";',
           'return argument == "running_mean";',
           "A batch norm that is made again moves its running variance once more."),
    Mutant("largest_shared_by_nobody", "torchglue/stages/extremes.cc",
           "at::where(largest, (x - found) / count,",
           "at::where(largest, x - found,",
           "Each of several entries that are equally large gets the whole gradient."),
    Mutant("momentum_swapped", "torchglue/stages/running_statistics.cc",
           "u.value.detach().mul(momentum).add_(data, 1 - momentum)",
           "u.value.detach().mul(1 - momentum).add_(data, momentum)",
           "Running statistics take nine tenths of the batch's, and keep one of their own."),
    # ---- random generators -------------------------------------------------------------------------------------------------------
    Mutant("noise_by_micro_batch", RULES + "random.cc",
           '{"aten::randn_like", noise, kRandom},',
           '{"aten::randn_like", draw, kRandom},',
           "Noise of the batch's shape is drawn for each micro-batch, from a seed of its own."),
    Mutant("uniform_by_micro_batch", RULES + "random.cc",
           '{"aten::uniform", noise, kRandom},',
           '{"aten::uniform", draw, kRandom},',
           "A tensor of the batch's shape is filled with noise by each micro-batch, from a seed of its own."),
    Mutant("half_of_a_generator_restored", "torchglue/base/random_state.cc",
           "    to->set_next_double_normal_sample(on_cpu_->next_double);\n",
           "",
           "A generator that is put back forgets the normal number that it had in store."),
    # ---- the memory account ------------------------------------------------------------------------------------------------------
    Mutant("budget_off_by_one_allocation", "runtime/ledger.cc",
           "      if (live > limit) return false;",
           "      if (before > limit) return false;",
           "An allocation is let through while what was there before it is within the budget."),
]
