// Over caches of bfloat16.
#include "paged.h"

namespace stentor {
namespace attention {

STENTOR_ATTEND(, bf16)

}  // namespace attention
}  // namespace stentor

using namespace stentor;

STENTOR_PAGED_ATTENTION(stentor_paged_attention_bf16, bf16, bf16)
