// Memory that others than PyTorch's operators may write to: an array of NumPy's (torch.from_numpy), a buffer that another process fills, a tensor that NumPy looks at.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace koila {

// Note [Foreign memory]
// Who owns the memory writes to it as he likes, and no version counts it up: a loader that puts the next batch into the same array before the backward pass. Plain PyTorch sees that only
// where the graph has saved the tensor itself; a step that is made again would read the next batch everywhere. So a digest is taken when the step reads such a tensor, and a step whose
// data has another one by the time that it is split, or made again, is refused. Of large memory it is one of samples: a batch that is filled anew differs in some of them.
// PyTorch's own memory is foreign from the moment that NumPy or DLPack is given its address (`t.numpy()`, `torch.from_dlpack(t)`: a second tensor, whose version is not the first one's), until
// an operator writes to it that counts no version up. What is written there may be one weight of many (finite differences): the digest is one of all words.

// Of all words of the memory, or of about so many `samples` that lie evenly in it.
uint64_t digest_of(const void* memory, size_t bytes, size_t samples = SIZE_MAX);

// 0 where the memory is PyTorch's own. Parameters are looked at only where NumPy or DLPack was given them: what is loaded from a file is often mapped, and nobody fills it anew.
uint64_t foreign_digest(const at::Tensor& tensor);

// Whether the memory that had this digest (0: none was taken) has another one now.
bool differs_from(uint64_t digest, const at::Tensor& tensor);

// From now on others may write to its memory. By the step's thread, like all that is here.
void note_exposed(const at::Tensor& tensor);
// An operator is about to write to it and counts no version up.
void forget_exposed(const at::Tensor& tensor);
// Whether note_exposed() has noted any memory. False makes a digest of memory of PyTorch's own unnecessary.
bool any_exposed();

}  // namespace koila
